"""What each dialect sends and how it reads an event."""

import math
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen import dialects
from loadgen.dialects import Reading, Scored, ServerError, openai, vllm
from loadgen.prompts import Prompt
from loadgen.record import Logprob, Usage
from loadgen.request import Request

ASKED = {
    "max_tokens": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "seed": 3,
}
COMPLETION = Request("p", Prompt(text="Say.", token_ids=[5, 6]), "completions", ASKED, 0, None)
CHAT = Request("p", Prompt(text="Say."), "chat", ASKED, 0, None)
STREAMED = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def test_dialects_are_found_by_their_files_names() -> None:
    """A new dialect is one new file."""
    assert {"llamacpp", "openai", "sglang", "vllm"} <= set(dialects.names())
    assert dialects.load("vllm").NAME == "vllm"
    with pytest.raises(dialects.DialectError, match="Did you mean vllm"):
        dialects.load("vlm")


def test_vllm_sends_every_field_and_asks_for_ids() -> None:
    """Token ids are preferred to text: nobody tokenizes them anew."""
    assert vllm.body(COMPLETION, "m") == STREAMED | ASKED | {"prompt": [5, 6], "return_token_ids": True}
    messages = [{"role": "user", "content": "Say."}]
    assert vllm.body(CHAT, "m") == STREAMED | ASKED | {"messages": messages, "return_token_ids": True}


def test_vllm_asks_for_alternatives_by_id() -> None:
    """By text, alternatives that read alike collapse."""
    body = vllm.body(replace(COMPLETION, asked={"logprobs": 5}), "m")
    assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (5, True)
    body = vllm.body(replace(CHAT, asked={"logprobs": 0}), "m")
    assert (body["logprobs"], body["top_logprobs"]) == (True, 0)


def test_openai_sends_only_what_the_standard_knows() -> None:
    """Strict servers refuse the rest."""
    known = {name: value for name, value in ASKED.items() if name not in ("top_k", "min_p")}
    assert openai.body(COMPLETION, "m") == STREAMED | known | {"prompt": [5, 6]}
    assert openai.body(replace(CHAT, asked={"logprobs": 2}), "m")["top_logprobs"] == 2


def test_a_prompt_without_a_form_that_fits_is_refused() -> None:
    """Token ids cannot be a chat, messages no completion."""
    with pytest.raises(dialects.DialectError, match="token ids only"):
        vllm.body(replace(CHAT, prompt=Prompt(token_ids=[1])), "m")
    with pytest.raises(dialects.DialectError, match="messages only"):
        openai.body(replace(COMPLETION, prompt=Prompt(messages=[{"role": "user", "content": "a"}])), "m")


def choice(**said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, "logprobs": None, **said}]}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            choice(text="a", token_ids=[0], prompt_token_ids=[1, 2]),
            Reading(text="a", token_ids=[0], prompt_token_ids=[1, 2]),
        ),
        (
            choice(delta={"content": "a"}, token_ids=[7]) | {"prompt_token_ids": [1]},
            Reading(text="a", token_ids=[7], prompt_token_ids=[1]),
        ),
        (choice(delta={"reasoning": "r"}), Reading(reasoning="r")),
        (choice(delta={"role": "assistant", "content": ""}), Reading()),
        (choice(text="", finish_reason=""), Reading()),
        (choice(text="", finish_reason="stop", token_ids=[]), Reading(finish_reason="stop", token_ids=[])),
    ],
)
def test_vllm_reads_a_choice(event: dict[str, Any], expected: Reading) -> None:
    """Ids of the prompt stand in the choice (completions) or beside it (chat)."""
    assert vllm.read(event) == expected._replace(choice=True)


def test_vllm_reads_what_is_no_choice() -> None:
    """Usage with cached tokens, the engine's figures of speculation, errors of any shape."""
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    metrics = {"speculative_decoding": {"num_spec_steps": 4}}
    expected = Reading(
        usage=Usage(prompt_tokens=4, completion_tokens=2, cached_tokens=3), speculation={"num_spec_steps": 4}
    )
    assert vllm.read({"choices": [], "usage": usage, "metrics": metrics}) == expected
    assert vllm.read({"error": {"message": "m", "code": 500}}).error == ServerError("m", 500)
    assert vllm.read({"error": "words"}).error == ServerError("words", None)
    assert vllm.read({"object": "error", "message": "flat", "code": 400}).error == ServerError("flat", 400)
    assert vllm.read({"choices": [], "usage": None}) == Reading()


def test_completions_logprobs() -> None:
    """Parallel lists; a token's value is its own, not its text's among the alternatives."""
    given = {
        "tokens": ["token_id:5", "token_id:6", "x"],
        "token_logprobs": [None, -9999.0, -0.75],
        "top_logprobs": [None, {"token_id:6": -0.5, "token_id:7": "-inf"}, {"x": -4.5}],
    }
    assert vllm.read(choice(text="a", logprobs=given)).logprobs == [
        Logprob(token_id=5, token="token_id:5", logprob=None, top=[]),
        Logprob(token_id=6, token="token_id:6", logprob=None, top=[(6, "token_id:6", -0.5), (7, "token_id:7", None)]),
        Logprob(token_id=None, token="x", logprob=-0.75, top=[(None, "x", -4.5)]),
    ]


def test_chat_logprobs() -> None:
    """A list of objects; the sampled token may be outside its alternatives."""
    entry = {"token": "Up", "logprob": -4.5, "top_logprobs": [{"token": "It", "logprob": -1.5, "id": 3}]}
    expected = [Logprob(token_id=None, token="Up", logprob=-4.5, top=[(3, "It", -1.5)])]
    assert openai.read(choice(delta={"content": "Up"}, logprobs={"content": [entry]})).logprobs == expected


def test_scores_are_looked_up_by_the_tokens_own_id() -> None:
    """It stands anywhere among the entries, whose ranks are not believed; the first position has none."""
    positions = [
        None,
        {"12884": {"logprob": -3.25, "rank": 17}, "1156": {"logprob": -1.5, "rank": 1}},
        {"264": {"logprob": -1.0}, "374": {"logprob": None}, "9": {"logprob": "-inf"}},
        {"1": {"logprob": -0.5}},
    ]
    answer = {"choices": [{"prompt_logprobs": positions, "prompt_token_ids": [785, 12884, 374, 13]}]}
    assert vllm.read_scores(answer) == [
        None,
        Scored(12884, -3.25, [(12884, -3.25), (1156, -1.5)]),
        Scored(374, -math.inf, [(264, -1.0), (374, -math.inf), (9, -math.inf)]),
        None,
    ]
    assert vllm.read_scores(answer, 2) == [None, None, *vllm.read_scores(answer)[2:]]


@pytest.mark.parametrize(
    "given", [{}, {"prompt_logprobs": [None]}, {"prompt_logprobs": [None], "prompt_token_ids": [1, 2]}]
)
def test_an_answer_without_scores_is_refused(given: dict[str, Any]) -> None:
    """A server that ignores the field must not look like one that scored."""
    with pytest.raises(ValueError, match="prompt_logprobs"):
        vllm.read_scores({"choices": [{"text": "a", **given}]})


def test_who_can_score() -> None:
    """vLLM by a completion of one token, k = 20; the standard not at all."""
    body = vllm.score_body([1, 2], "m")
    assert body is not None
    assert (body["prompt"], body["max_tokens"], body["prompt_logprobs"], body["stream"]) == ([1, 2], 1, 20, False)
    assert openai.score_body([1, 2], "m") is None
    with pytest.raises(ValueError):
        openai.read_scores({})


PAGE = """
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="1000",num_gpu_blocks="99"} 1.0
vllm:cache_config_info{block_size="16",engine="1",kv_cache_size_tokens="500",num_gpu_blocks="99"} 1.0
"""


def test_capacity_is_what_the_server_says_over_its_engines() -> None:
    """Never blocks times their size, which is wrong for models of mixed attention."""
    assert vllm.capacity(text_string_to_metric_families(PAGE)) == 1500
    assert vllm.capacity(text_string_to_metric_families(PAGE.replace("kv_cache_size_tokens", "other"))) is None
    assert vllm.capacity([]) is None
    assert openai.capacity(text_string_to_metric_families(PAGE)) is None


def test_counters_are_named_with_their_total() -> None:
    """So that their _created companions are never added in; both names of the cache's usage are known."""
    counters = ("preemptions", "prompt_tokens", "generation_tokens", "drafts", "draft_tokens", "accepted_tokens")
    assert all(name.endswith("_total") for key in counters for name in vllm.METRICS[key].families)
    assert vllm.METRICS["kv_usage"].families == ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert vllm.METRICS["kv_usage"].combine == "max"


def test_a_token_listed_twice_is_one_alternative() -> None:
    """Else its probability would count twice."""
    twice = {"token": "it", "logprob": -0.25}
    entry = {"token": "it", "logprob": -0.25, "top_logprobs": [twice, twice, {"token": "we", "logprob": -2}]}
    (read,) = openai.read(choice(delta={"content": "it"}, logprobs={"content": [entry]})).logprobs or []
    assert read.top == [(None, "it", -0.25), (None, "we", -2.0)]


def test_tokens_of_reasoning_are_counted_apart() -> None:
    """SGLang tells them beside the completion's, the standard in its details; either way as the server counts."""
    beside = {"completion_tokens": 8, "reasoning_tokens": 9}
    inside = {"completion_tokens": 8, "completion_tokens_details": {"reasoning_tokens": 9}}
    expected = Usage(completion_tokens=8, reasoning_tokens=9)
    assert [expected, expected] == [openai.read({"choices": [], "usage": given}).usage for given in (beside, inside)]


@pytest.mark.parametrize("name", dialects.names())
def test_every_dialect_is_whole(name: str) -> None:
    """A module has what the protocol names, and says where each method lies that it has."""
    module = dialects.load(name)
    assert name == module.NAME
    assert {"completions", "chat"} <= set(module.PATHS)
    assert (module.score_body([1], "m") is not None) == ("scores" in module.PATHS)
    assert module.reader() is not None
    assert module.capacity([]) is None
