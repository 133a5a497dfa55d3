"""How llama.cpp's server is asked, and how its streams are read: its own completions and the standard's methods."""

from dataclasses import replace
from typing import Any

from loadgen.dialects import Reading, ServerError, llamacpp
from loadgen.prompts import Prompt
from loadgen.record import Logprob, Usage
from loadgen.request import Request

ASKED = {"max_tokens": 8, "temperature": 1.0}
COMPLETION = Request("p", Prompt(text="Say.", token_ids=[5, 6]), "completions", ASKED, 0, None)
CHAT = Request("p", Prompt(text="Say."), "chat", ASKED, 0, None)


def choice(**said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, "logprobs": None, **said}]}


def test_llamacpp_completions_go_to_its_own_method() -> None:
    """The standard's has no token ids; fewest tokens cannot be asked for."""
    asked = {"max_tokens": 8, "min_tokens": 8, "logprobs": 3}
    body = llamacpp.body(replace(COMPLETION, asked=asked), "m")
    assert (llamacpp.PATHS["completions"], body["return_tokens"], body["n_probs"]) == ("/completion", True, 3)
    assert (body["max_tokens"], "min_tokens" in body) == (8, False)
    assert "return_tokens" not in llamacpp.body(CHAT, "m")


def predicted(content: str, tokens: list[int], total: int, **more: Any) -> dict[str, Any]:
    said = {"content": content, "tokens": tokens, "stop": False, "tokens_predicted": total, "tokens_evaluated": 4}
    return said | more


def test_llamacpp_reads_its_own_completion() -> None:
    """Ids, running counts, the drafts in the timings, and an end without [DONE]."""
    read = llamacpp.reader()
    entry = {"id": 5, "token": "a", "logprob": -0.5, "top_logprobs": [{"id": 6, "token": "b", "logprob": -3.4e38}]}
    first = read(predicted("a", [5], 1, completion_probabilities=[entry]))
    timings = {"cache_n": 3, "predicted_n": 1, "draft_n": 8, "draft_n_accepted": 5}
    last = read(predicted("", [], 1, stop=True, stop_type="limit", timings=timings))
    usage = Usage(prompt_tokens=4, completion_tokens=1)
    logprobs = [Logprob(token_id=5, token="a", logprob=-0.5, top=[(6, "b", None)])]
    drafts = {"draft_n": 8, "draft_n_accepted": 5}
    assert first == Reading(text="a", token_ids=[5], usage=usage, logprobs=logprobs, choice=True)
    ended = Reading(token_ids=[], finish_reason="length", speculation=drafts, choice=True, last=True)
    assert last == ended._replace(usage=replace(usage, cached_tokens=3))


def test_llamacpp_keeps_no_ids_where_it_left_some_out() -> None:
    """Of a character in several tokens it sends the last one's id alone; the count shows it."""
    read = llamacpp.reader()
    assert [read(predicted(*event)).token_ids for event in [("a", [5], 1), ("é", [7], 3), ("b", [9], 4)]] == [
        [5],
        None,
        [9],
    ]


def test_llamacpp_reads_the_standards_methods() -> None:
    """Log-probabilities have the chat's form for completions too; errors stand as everywhere."""
    entry = {"id": 5, "token": "a", "logprob": -0.5, "top_logprobs": []}
    read = llamacpp.reader()(choice(text="a", logprobs={"content": [entry]}) | {"timings": {"predicted_n": 1}})
    assert read == Reading(text="a", logprobs=[Logprob(token_id=5, token="a", logprob=-0.5, top=[])], choice=True)
    failed = {"error": {"code": 500, "message": "gone", "type": "server_error"}}
    assert llamacpp.reader()(failed).error == ServerError("gone", 500)
    assert llamacpp.score_body([1], "m") is None
    assert llamacpp.capacity([]) is None
