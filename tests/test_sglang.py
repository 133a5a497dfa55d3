"""How SGLang is asked, and how its streams are read: the standard's, and its own of all so far or of what is new."""

import math
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.dialects import Reading, Scored, ServerError, sglang
from loadgen.prompts import Prompt
from loadgen.record import Logprob
from loadgen.request import Request

ASKED = {"max_tokens": 8, "temperature": 1.0}
COMPLETION = Request("p", Prompt(text="Say.", token_ids=[5, 6]), "completions", ASKED, 0, None)
CHAT = Request("p", Prompt(text="Say."), "chat", ASKED, 0, None)
STREAMED = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def choice(**said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, "logprobs": None, **said}]}


def test_sglang_asks_for_ids_as_each_method_gives_them() -> None:
    """Completions with every chunk; a streamed chat refuses that, and tells them at its end."""
    body = sglang.body(COMPLETION, "m")
    assert body == STREAMED | ASKED | {"prompt": [5, 6], "return_token_ids": True, "return_spec_tokens_details": True}
    body = sglang.body(CHAT, "m")
    assert "return_token_ids" not in body
    assert (body["return_input_ids_in_sglext"], body["return_output_ids_in_sglext"]) == (True, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_sglang_reads_the_end_of_a_chat() -> None:
    """All ids, and what became of the drafts."""
    details = {"spec_accept_length": 2.5, "spec_verify_ct": 4}
    extension = {"input_ids": [1, 2], "output_ids": [[5, 6]], "spec_tokens_details": details}
    expected = Reading(reply_ids=[5, 6], prompt_token_ids=[1, 2], speculation=details)
    assert sglang.reader()({"choices": [], "sglext": extension}) == expected


def test_sglang_names_tokens_by_their_ids_where_it_tells_them() -> None:
    """In log-probabilities they stand by their text."""
    given = {"tokens": ["a", "a"], "token_logprobs": [-1, -2], "top_logprobs": None}
    read = sglang.reader()(choice(text="aa", token_ids=[5, 6], logprobs=given)).logprobs or []
    assert [one.token_id for one in read] == [5, 6]
    read = sglang.reader()(choice(text="aa", token_ids=[5], logprobs=given)).logprobs or []
    assert [one.token_id for one in read] == [None, None]


def generated(text: str, ids: list[int] | None, total: int | None, finish: Any = None, **meta: Any) -> dict[str, Any]:
    event = {"text": text, "meta_info": {"completion_tokens": total, "finish_reason": finish, **meta}}
    return event if ids is None else event | {"output_ids": ids}


WHOLE = "all so far in every event"
NEW = "only what is new in every event"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([("a", [5], 1), ("a b", [5, 6], 2)], [("a", [5], None), (" b", [6], None)]),
        ([("a", [5], 1), (" b", [6], 2)], [("a", [5], None), (" b", [6], None)]),
        ([("a", [5], 1), ("a", [5], 2), ("b", [6], 3)], [("a", [5], None), ("a", [5], None), ("b", [6], None)]),
        ([("a", [5], 1), ("", [], 1)], [("a", [5], None), ("", [], None)]),
        ([("", [], 0), ("a", [5], 1), ("ab", [5, 6], 2)], [("", [], None), ("a", [5], None), ("b", [6], None)]),
        ([("a", None, 1), ("ab", None, 2)], [("a", None, None), ("b", None, None)]),
        ([("a", None, 1), ("b", None, 2)], [("a", None, None), ("b", None, None)]),
        ([("a EN", [5, 6], 2), ("a", [5, 6, 7], 3)], [("a EN", [5, 6], None), ("", [7], 1)]),
    ],
    ids=[
        WHOLE,
        NEW,
        "the same token twice",
        "nothing new at the end",
        "nothing yet",
        "no ids",
        "no ids, new",
        "a stop",
    ],
)
def test_sglang_generate_tells_what_is_new(
    events: list[tuple[str, list[int] | None, int]], expected: list[tuple[str, list[int] | None, int | None]]
) -> None:
    """Whichever way the server streams; a stop word that was sent can be taken back."""
    read = sglang.reader()
    readings = [read(generated(*event)) for event in events]
    assert expected == [(one.text, one.token_ids, one.kept) for one in readings]


def test_sglang_generate_finishes_with_an_object() -> None:
    """An abort with a status is an error, one without was wished for."""
    read = sglang.reader()
    assert read(generated("a", [5], 1, {"type": "length", "length": 1})).finish_reason == "length"
    aborted = read(generated("a", [5], 1, {"type": "abort", "message": "out of memory", "status_code": 500}))
    assert (aborted.finish_reason, aborted.error) == ("abort", ServerError("out of memory", 500))
    assert read(generated("a", [5], 1, {"type": "abort", "message": "as asked"})).error is None


def test_sglang_logprobs_are_triples() -> None:
    """Value, id, text or null; in a stream of all so far, only the new ones are read."""
    one = [[-0.75, 5, None], [-0.5, 6, "b"]]
    tops = [[[-0.75, 5, None], [-1.25, 9, "x"]], None]
    read = sglang.reader()
    first = read(generated("a", [5], 1, output_token_logprobs=one[:1], output_top_logprobs=tops[:1])).logprobs
    second = read(generated("ab", [5, 6], 2, output_token_logprobs=one, output_top_logprobs=tops)).logprobs
    assert first == [Logprob(token_id=5, token=None, logprob=-0.75, top=[(5, None, -0.75), (9, "x", -1.25)])]
    assert second == [Logprob(token_id=6, token="b", logprob=-0.5, top=[])]
    with pytest.raises(ValueError, match="no token id"):
        sglang.read_triples({"output_token_logprobs": [["a", -0.5, None]]}, "output")


def test_sglang_scores_by_generate() -> None:
    """The actual token stands apart from the likeliest ones, and need not be one of them."""
    body = sglang.score_body([1, 2], "m")
    assert body is not None
    assert (body["input_ids"], body["logprob_start_len"], body["top_logprobs_num"]) == ([1, 2], 0, 20)
    assert sglang.PATHS["scores"] == "/generate"
    meta = {
        "input_token_logprobs": [[None, 785, None], [-3.5, 12884, None], [None, 374, None]],
        "input_top_logprobs": [None, [[-1.5, 1156, None], [-2.0, 4937, None]], [[-0.25, 9, None]]],
    }
    assert sglang.read_scores({"meta_info": meta}) == [
        None,
        Scored(12884, -3.5, [(1156, -1.5), (4937, -2.0), (12884, -3.5)]),
        Scored(374, -math.inf, [(9, -0.25), (374, -math.inf)]),
    ]
    with pytest.raises(ValueError, match="input_token_logprobs"):
        sglang.read_scores({"meta_info": {}})


def test_sglang_capacity_is_over_its_ranks() -> None:
    """Ranks of one cache say the same of it; those of data parallelism have one each."""
    page = "\n".join(
        f'sglang:max_total_num_tokens{{dp_rank="{dp}",tp_rank="{tp}"}} {tokens}'
        for dp, tp, tokens in [(0, 0, 1000), (0, 1, 1000), (1, 2, 500)]
    )
    assert sglang.capacity(text_string_to_metric_families(page + "\n")) == 1500
    assert sglang.capacity([]) is None
