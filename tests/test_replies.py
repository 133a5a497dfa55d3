"""What the client makes of answers: which events carry tokens, what is a success, and why the others failed."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from asking import Asking, performed
from loadgen.record import Run, RunWriter
from loadgen.record.writer import take_anchor
from loadgen.transport import SocketTransport
from playback import DONE, STREAM, Script, answer, chunk, delta, event, stream, text, usage


@pytest.fixture
async def transport() -> AsyncIterator[SocketTransport]:
    made = SocketTransport()
    yield made
    await made.aclose()


CHAT = Asking(dialect="openai", kind="chat")
ROLE = delta(role="assistant", content="")
RUNNING = [{"prompt_tokens": 3, "completion_tokens": n} for n in range(10)]


def running(said: str, tokens: int, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": said, "finish_reason": finish}], usage=RUNNING[tokens])


@dataclass
class Read:
    """A stream that is a success, and how it reads."""

    why: str
    events: list[bytes]
    text: str | None = ""
    chunks: list[int | None] = field(default_factory=list)
    completion: int | None = None
    flags: list[str] = field(default_factory=list)
    chat: bool = True
    more: dict[str, Any] = field(default_factory=dict)


def stop(said: bytes = delta(finish="stop")) -> bytes:
    return said


READ = [
    Read("a role is no token", [ROLE, delta(content="a"), stop(), usage(1, 1), DONE], "a", [None], 1),
    Read(
        "Azure's prelude is none",
        [event(choices=[], prompt_filter_results=[]), delta(content="a"), stop(), usage(1, 1), DONE],
        "a",
        [None],
        1,
    ),
    Read(
        "reasoning is",
        [ROLE, delta(reasoning="\n"), delta(reasoning_content="x"), delta(content="a"), stop(), usage(1, 3), DONE],
        "a",
        [None] * 3,
        3,
        more={"reasoning": "\nx"},
    ),
    Read(
        "null-filled chunks",
        [delta(role=None, content=None, reasoning_content="x", tool_calls=None), stop(), usage(1, 2), DONE],
        "",
        [None],
        2,
        more={"reasoning": "x"},
    ),
    Read(
        "a tool call is",
        [
            ROLE,
            delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
            stop(delta("tool_calls")),
            usage(1, 9),
            DONE,
        ],
        "",
        [None] * 3,
        9,
        more={"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}]},
    ),
    Read("usage only", [ROLE, stop(), usage(1, 37), DONE], "", [], 37, ["tokens_without_text"]),
    Read(
        "all in one event", [delta(content="No.", finish="stop", role="assistant"), usage(1, 3), DONE], "No.", [None], 3
    ),
    Read(
        "no usage: unknown, not the chunks",
        [delta(content="a"), delta(content="b"), stop(), DONE],
        "ab",
        [None] * 2,
        None,
    ),
    Read(
        "a finish of '' is none, a second adds nothing",
        [delta("", content="a"), stop(), stop(), usage(1, 1), DONE],
        "a",
        [None],
        1,
    ),
    Read(
        "zeros in every chunk are no usage",
        [
            event(choices=[{"delta": {"content": "a"}}], usage=RUNNING[0]),
            stop(),
            event(choices=[{"delta": {}}], usage=RUNNING[7]),
            DONE,
        ],
        "a",
        [None],
        7,
    ),
    Read(
        "no finish_reason, but all else",
        [delta(content="a"), usage(1, 1), DONE],
        "a",
        [None],
        1,
        ["no_finish_reason"],
        more={"finish_reason": None},
    ),
    Read("no [DONE]", [delta(content="a"), stop(), usage(1, 1)], "a", [None], 1, ["no_done"]),
    Read(
        "an unfinished usage event counts, visibly",
        [delta(content="a"), stop(), usage(1, 3)[:-1]],
        "a",
        [None],
        3,
        ["no_done", "cut_last_event"],
    ),
    Read(
        "what is cut off behind the finish does not",
        [delta(content="a"), stop(), usage(1, 3)[:-9]],
        "a",
        [None],
        None,
        ["no_done"],
    ),
    Read(
        "what follows [DONE] is nothing",
        [delta(content="a"), stop(), usage(1, 1), DONE + delta(content="b")],
        "a",
        [None],
        1,
    ),
    Read(
        "a private event is none",
        [delta(content="a"), b'event: progress\ndata: {"x": 1}\n\n', stop(), usage(1, 1), DONE],
        "a",
        [None],
        1,
    ),
    Read(
        "running usage counts tokens, also a silent last one",
        [
            running("", 0),
            running("Rain", 1),
            running("", 1),
            running(" falls", 3),
            running("", 4, "stop"),
            usage(3, 4),
            DONE,
        ],
        "Rain falls",
        [1, 2, 1],
        4,
        chat=False,
    ),
    Read(
        "id 0 and EOS are tokens",
        [text("!", [0]), text("", [2], "stop"), usage(1, 2), DONE],
        "!",
        [1, 1],
        2,
        chat=False,
        more={"token_ids": [0, 2]},
    ),
    Read(
        "ids against usage: both kept",
        [text("a b", [1, 2], "stop"), usage(1, 9), DONE],
        "a b",
        [2],
        9,
        ["usage_disagrees_with_ids"],
        chat=False,
    ),
    Read(
        "text without ids among ids",
        [text("a", [1]), text("b"), text("", [], "stop"), usage(1, 2), DONE],
        "ab",
        [1, None],
        2,
        ["usage_disagrees_with_ids", "token_ids_incomplete"],
        chat=False,
    ),
    Read(
        "any character",
        [text("one\u2028two\u0085\ufeff✅", [1], "stop"), usage(1, 1), DONE],
        "one\u2028two\u0085\ufeff✅",
        [1],
        1,
        chat=False,
    ),
]


@pytest.mark.parametrize("case", READ, ids=lambda case: case.why)
async def test_streams_that_succeed(transport: SocketTransport, case: Read) -> None:
    """Which events carry tokens, how many, and what is worth a flag."""
    record = await performed(transport, stream(*case.events), CHAT if case.chat else Asking())
    assert record.failure is None
    assert (record.text, record.chunk_tokens) == (case.text, case.chunks)
    assert (record.usage.completion_tokens if record.usage else None) == case.completion
    assert record.flags == case.flags
    expected = {"finish_reason": "stop"} | case.more
    if "tool_calls" in case.more:
        expected["finish_reason"] = "tool_calls"
    assert {name: getattr(record, name) for name in expected} == expected
    assert len(record.chunk_ns) == len(record.chunk_ambiguous) == len(case.chunks)


def error(status: int, body: Any, more: str = "") -> Script:
    return answer(status, body if isinstance(body, bytes) else orjson.dumps(body), more=more)


ERROR = event(error={"message": "the engine stopped", "type": "InternalServerError", "code": 500})
FAILED = [
    ("rate_limited", error(429, {"error": {"message": "too many"}}, "Retry-After: 7\r\n"), "too many", None),
    ("loading", error(503, {"error": {"message": "Loading model", "code": 503}}), "Loading model", None),
    (
        "rate_limited",
        error(503, {"object": "error", "message": "The request queue is full."}),
        "The request queue is full.",
        None,
    ),
    ("auth", error(401, {"error": "Unauthorized"}), "Unauthorized", None),
    (
        "model_not_found",
        error(404, {"error": {"message": "none is called so", "param": "model"}}),
        "none is called so",
        None,
    ),
    ("model_not_found", error(404, {"detail": "tide-1 is unknown"}), "tide-1 is unknown", None),
    ("http_status", error(404, {"detail": "Not Found"}), "Not Found", None),
    (
        "http_status",
        error(422, {"detail": [{"loc": ["body"], "msg": "this field is needed"}]}),
        "this field is needed",
        None,
    ),
    ("http_status", answer(502, b"<h1>Bad\r\ngateway</h1>", "text/html"), "<h1>Bad gateway</h1>", None),
    ("http_status", error(500, b""), "", None),
    (
        "http_status",
        answer(307, b"", more="Location: http://b/\r\n"),
        "redirects to http://b/; timed requests follow none",
        None,
    ),
    (
        "context_too_long",
        error(400, {"error": {"message": "5000 tokens.", "param": "input_tokens"}}),
        "5000 tokens.",
        None,
    ),
    (
        "context_too_long",
        error(400, {"object": "error", "message": "context length is 4096"}),
        "context length is 4096",
        None,
    ),
    (
        "context_too_long",
        error(400, {"error": {"message": "no fit", "type": "exceed_context_size_error"}}),
        "no fit",
        None,
    ),
    ("context_too_long", error(422, {"error": "inputs too long", "error_type": "validation"}), "inputs too long", None),
    ("http_status", error(400, {"error": {"message": "logprobs above 20"}}), "logprobs above 20", None),
    ("error_body", error(200, {"error": {"message": "longer than the context"}}), "longer than the context", None),
    (
        "not_a_stream",
        answer(200, b"<p>data: x\n\n</p>", "text/html"),
        "the answer is text/html, no event stream: <p>data: x </p>",
        None,
    ),
    (
        "error_event",
        stream(text("The", [1]), text(" river", [2]), ERROR, DONE),
        "the engine stopped (500)",
        "The river",
    ),
    (
        "error_event",
        stream(
            text("a"), event(choices=[{"text": "", "finish_reason": "error"}], error={"message": "gone", "code": 502})
        ),
        "gone (502)",
        "a",
    ),
    ("error_event", stream(text("a"), b'event: error\ndata: {"error": "plain words"}\n\n'), "plain words", "a"),
    ("error_event", stream(text("a"), b'data: {"object": "error", "message": "flat", "code": 7}\n\n'), "flat (7)", "a"),
    ("aborted", stream(text("a", [1]), text("", [], "abort"), usage(1, 1), DONE), "finish_reason abort", "a"),
    ("truncated", stream(text("a"), text("b")), "the stream ended without finish_reason", "ab"),
    ("truncated", stream(ROLE), "the stream ended without finish_reason", ""),
    (
        "truncated",
        Script([STREAM + chunk(text("a"))], then="close"),
        "The connection was closed before the body's end.",
        "a",
    ),
    (
        "truncated",
        Script([b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{}"], then="close"),
        "The connection was closed before the body's end.",
        None,
    ),
    (
        "truncated",
        Script(
            [b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text("a") + b'data: {"id'], then="close"
        ),
        "the stream ended without finish_reason",
        "a",
    ),
    ("empty", stream(), "the answer holds no token", None),
    ("empty", stream(DONE), "the answer holds no token", ""),
    ("empty", stream(delta(finish="stop"), usage(3, 0), DONE), "the answer holds no token", ""),
    (
        "malformed",
        stream(text("a"), b"data: {oops\n\n", text("b", finish="stop"), usage(1, 2), DONE),
        "an event that cannot be read",
        "ab",
    ),
    (
        "malformed",
        stream(text("a"), b"data: [1]\n\n", event(choices=7), text("b", finish="stop"), DONE),
        "an event that cannot be read",
        "ab",
    ),
    (
        "malformed",
        stream(event(choices=[{"text": 5}]), text("a", ["x"], "stop"), DONE),
        "an event that cannot be read",
        "a",
    ),
    ("malformed", Script([b"SMTP ready\r\n"]), "The answer is no HTTP/1", None),
    (
        "connection_reset",
        Script([STREAM + chunk(text("Reef")) + chunk(text(" knot"))], then="reset"),
        "The connection broke",
        "Reef knot",
    ),
    ("connection_reset", Script([], then="close"), "The server closed the connection without an answer.", None),
]


@pytest.mark.parametrize(("expected", "script", "detail", "said"), FAILED)
async def test_failures_have_a_kind_and_the_servers_words(
    transport: SocketTransport, expected: str, script: Script, detail: str, said: str | None
) -> None:
    """And keep what came before: a failed request is a record like any other."""
    record = await performed(transport, script)
    assert record.failure is not None
    assert record.failure.kind == expected
    assert record.failure.detail.startswith(detail)
    assert record.failure.status == record.status
    assert record.text == said
    assert record.end_ns is not None
    assert not record.chunk_ns or record.text


ODD = [
    ("token ids as texts", {"token_ids": ["5"]}, "malformed"),
    ("token ids as one text", {"token_ids": "567"}, "malformed"),
    ("negative token ids", {"token_ids": [-7]}, "malformed"),
    ("token ids beyond 31 bits", {"token_ids": [1 << 40]}, "malformed"),
    ("prompt token ids as one text", {"prompt_token_ids": "123"}, "malformed"),
    ("prompt token ids as texts", {"prompt_token_ids": ["1", "x"]}, "malformed"),
    ("prompt token ids as an object", {"prompt_token_ids": {"a": 1}}, "malformed"),
    ("a finish_reason that is an object", {"finish_reason": {"type": "stop"}}, "malformed"),
    ("a text that is a list", {"text": ["a"]}, "malformed"),
    ("a token's text that is a number", {"logprobs": {"content": [{"token": 5, "logprob": -1}]}}, "malformed"),
    (
        "an endless token id among log-probabilities",
        {"logprobs": {"content": [{"token": "token_id:" + "9" * 99}]}},
        None,
    ),
    ("usage in words", {"usage": {"prompt_tokens": "abc", "completion_tokens": "3"}}, None),
    ("usage in fractions", {"usage": {"prompt_tokens": 3.5, "completion_tokens": 3.5}}, None),
    ("negative usage", {"usage": {"prompt_tokens": -3, "completion_tokens": -1}}, None),
    ("cached tokens in words", {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": "x"}}}, None),
    ("figures of speculation that are a list", {"metrics": {"speculative_decoding": [1, 2]}}, None),
]


@pytest.mark.parametrize(("sent", "expected"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
async def test_whatever_a_server_sends_its_record_can_be_read_again(
    transport: SocketTransport, tmp_path: Path, sent: dict[str, Any], expected: str | None
) -> None:
    """Fields of other types than the standard's: the request fails or the field is unknown; the run stays readable."""
    outside = {name: sent[name] for name in sent if name in ("usage", "metrics")}
    odd = {"index": 0, "text": "a", "token_ids": [6], **{name: sent[name] for name in sent if name not in outside}}
    events = [event(choices=[odd]), event(choices=[{"index": 0, "text": "", "token_ids": [], "finish_reason": "stop"}])]
    record = await performed(transport, stream(*events, *([event(choices=[], **outside)] if outside else []), DONE))
    writer = RunWriter(tmp_path / "run", {"endpoints": {}}, take_anchor("read"))
    writer.record(record)
    writer.end("done", {})

    assert list(Run.open(tmp_path / "run").records()) == [record]
    assert (record.failure.kind if record.failure else None) == expected


async def test_a_server_that_repeats_the_key_gives_it_away_to_nobody(transport: SocketTransport) -> None:
    """Some put the key that they refuse into their error; the record of it holds neither key nor header value."""
    record = await performed(transport, error(401, {"error": {"message": "Incorrect API key: sesame (Bearer sesame)"}}))

    assert record.failure is not None
    assert record.failure.detail == "Incorrect API key: *** (***)"
