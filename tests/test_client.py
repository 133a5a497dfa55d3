"""One request, one record: what the client makes of what servers do. A real local server plays every answer."""

import asyncio
import gc
import socket
import time
import zlib
from collections.abc import AsyncIterator
from typing import Literal

import httpx
import orjson
import pytest

from asking import OK, PATIENT, PLACE, Asking, at, client, kind, performed
from loadgen import dialects
from loadgen.client import Client
from loadgen.connection import Answer
from loadgen.endpoint import Target
from loadgen.profile import Limits
from loadgen.record import Record, Usage
from loadgen.reply import Reply
from loadgen.transcript import Transcript
from loadgen.transport import SocketTransport
from playback import DONE, LAST, STREAM, Script, chunk, delta, event, playing, stream, text, usage


@pytest.fixture
async def transport() -> AsyncIterator[SocketTransport]:
    made = SocketTransport()
    yield made
    await made.aclose()


async def test_a_reply_becomes_a_record(transport: SocketTransport) -> None:
    """Every field that the wire tells, with stamps in order, and null for what it does not."""
    speculation = {"speculative_decoding": {"num_spec_steps": 2}}
    last = event(
        choices=[],
        usage={"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}},
        metrics=speculation,
    )
    first = text("Oars", [5], prompt_token_ids=[1, 2, 3])
    record = await performed(
        transport, stream(first, text(" dip and lift", [6, 7, 0], "length"), text("", [8]), last, DONE)
    )
    assert record.failure is None
    assert (record.id, record.endpoint, record.profile, record.prompt_id) == (f"{1:032x}", "stock", "solo", "solo-0-0")
    assert (record.text, record.token_ids, record.prompt_token_ids) == ("Oars dip and lift", [5, 6, 7, 0, 8], [1, 2, 3])
    assert record.chunk_tokens == [1, 3, 1]
    assert record.chunk_ambiguous == [False, False, False]
    assert record.usage == Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=1)
    assert record.speculation == {"num_spec_steps": 2}
    assert (record.finish_reason, record.status, record.flags) == ("length", 200, [])
    assert (record.reasoning, record.tool_calls, record.logprobs, record.due_ns) == (None, None, None, None)
    stamps = [record.sent_ns, record.first_byte_ns, *record.chunk_ns, record.end_ns]
    assert stamps == sorted(stamp for stamp in stamps if stamp is not None)


async def test_what_goes_out(transport: SocketTransport) -> None:
    """The id, the key, the body with its extras; no coding of the answer is asked for."""
    asking = Asking(extra_body={"temperature": 0.9, "priority": 1})
    async with playing(OK) as server:
        record = await at(transport, server.url, asking)
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {f"X-Request-Id: {record.id}", "Authorization: Bearer sesame", "Accept-Encoding: identity"} <= set(lines)
    sent = orjson.loads(body)
    assert (sent["model"], sent["prompt"], sent["temperature"], sent["priority"]) == ("tide-1", "Say.", 0.9, 1)
    assert record.asked == {**asking.asked, "temperature": 0.9, "priority": 1}, "what was really sent"
    assert record.flags == ["overridden_by_extra_body:temperature"]


async def test_a_sampling_field_that_is_not_sent_is_said(transport: SocketTransport) -> None:
    """The plain dialect knows no top_k; the record does not claim that it was sent."""
    asking = Asking(dialect="openai", asked={"max_tokens": 8, "top_k": -1, "temperature": 1.0})
    record = await performed(transport, stream(text("a", finish="stop"), usage(1, 1), DONE), asking)
    assert record.asked == {"max_tokens": 8, "temperature": 1.0}
    assert record.flags == ["sampling_field_not_sent:top_k"]


async def test_ignore_eos_that_ended_early_is_flagged(transport: SocketTransport) -> None:
    """Complete by the protocol, but not what was ordered."""
    asking = Asking(asked={"max_tokens": 64, "ignore_eos": True})
    record = await performed(transport, stream(text("a", [1], "length"), usage(1, 1), DONE), asking)
    assert (kind(record), record.flags) == (None, ["short_under_ignore_eos"])


async def test_chunks_of_one_read_are_ambiguous(transport: SocketTransport) -> None:
    """The time between them is unknown; a usage event in the same read changes nothing."""
    parts = [chunk(text("a", [1])) + chunk(text("b", [2])), 0.02, chunk(text("c", [3])), 0.02]
    last = chunk(text("d", [4], "stop") + usage(1, 4) + DONE) + LAST
    record = await performed(transport, Script([STREAM, 0.02, *parts, last]))
    assert record.chunk_ambiguous == [True, True, False, False]
    assert record.chunk_ns[0] == record.chunk_ns[1] < record.chunk_ns[2] < record.chunk_ns[3]


async def test_a_server_that_is_not_there(transport: SocketTransport) -> None:
    """No status, no stamps, and the kind says which step failed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    await client(transport, f"http://127.0.0.1:{port}", Asking()).open(3)
    refused = await at(transport, f"http://127.0.0.1:{port}", Asking())
    assert (kind(refused), refused.status, refused.sent_ns, refused.text) == ("connect", None, None, None)


async def test_a_server_without_tls(transport: SocketTransport) -> None:
    """https:// to a server that speaks plain HTTP is a kind of its own: the address is right, its scheme is not."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    record = await at(transport, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", Asking())
    assert (kind(record), record.status) == ("tls", None)
    server.close()


def limits(**seconds: float) -> Limits:
    return Limits(**{"connect_s": 5, "first_token_s": 5, "idle_s": 5, "request_s": 5} | seconds)


SLOWLY: list[bytes | float] = [part for _ in range(12) for part in (0.05, chunk(b": ping\n\n"))]


@pytest.mark.parametrize(
    ("expected", "asked", "parts", "said", "why"),
    [
        ("stalled", limits(idle_s=0.3), [chunk(text("Wait", [1])), *SLOWLY], "Wait", "comments do not count"),
        ("stalled", limits(first_token_s=0.3), [chunk(delta(role="a")), *SLOWLY], "", "a role is no first token"),
        ("stalled", limits(first_token_s=0.3, idle_s=0.1), [], None, "nothing at all"),
        ("timeout", limits(request_s=0.3), [chunk(text("a", [1])), *SLOWLY], "a", "the whole took too long"),
        (None, limits(idle_s=0.3), [chunk(text("a", [1], "stop") + DONE), *SLOWLY], "a", "left open behind [DONE]"),
    ],
)  # fmt: skip
async def test_limits(
    transport: SocketTransport, expected: str | None, asked: Limits, parts: list[bytes | float], said: str, why: str
) -> None:
    """A hanging server costs a request, never the run; the server sees that we left."""
    async with playing(Script([STREAM, *parts], then="hang")) as server:
        record = await at(transport, server.url, Asking(limits=asked))
        await asyncio.wait_for(server.gone.wait(), 5)
    assert (kind(record), record.text) == (expected, said), why
    assert ("connection_cut_after_done" in record.flags) == (expected is None)


async def test_a_queued_request_is_not_a_stalled_one(transport: SocketTransport) -> None:
    """Until the first token only its own limit holds, however short the idle limit is."""
    late = Script(
        [STREAM, chunk(delta(role="assistant")), 0.4, chunk(text("a", [1], "stop") + usage(1, 1) + DONE), LAST]
    )
    assert kind(await performed(transport, late, Asking(limits=limits(idle_s=0.1)))) is None


async def test_a_cancelled_request_keeps_its_record(transport: SocketTransport) -> None:
    """What had come by then is kept, and the cancellation goes on."""
    kept: list[Record] = []
    async with playing(Script([STREAM + chunk(text("a", [1]))], then="hang")) as server:
        ours = client(transport, server.url, Asking())
        task = asyncio.create_task(ours.perform(ours.prepare(Asking().request()), PLACE, 7, kept.append))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 5)
    assert [(kind(record), record.text, record.due_ns) for record in kept] == [("cancelled", "a", 7)]


async def test_logprobs_are_read_in_pieces(transport: SocketTransport) -> None:
    """Nothing is lost or doubled where the answer is read while it grows."""
    one = {
        "tokens": ["token_id:5"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:5": -0.5, "token_id:6": None}],
    }
    many = [chunk(text("a", [5], logprobs=one)) for _ in range(40)]
    slow = Script([STREAM, *[part for data in many for part in (data, 0.01)], chunk(text("", [], "stop") + DONE), LAST])
    record = await performed(transport, slow, Asking(asked={"max_tokens": 40, "logprobs": 1}))
    assert kind(record) is None
    assert record.logprobs is not None
    assert [entry.token_id for entry in record.logprobs] == record.token_ids == [5] * 40
    assert record.logprobs[0].top == [(5, "token_id:5", -0.5), (6, "token_id:6", None)]


async def test_a_gzip_stream_is_read_on_time(transport: SocketTransport) -> None:
    """One decoder for the whole body; an event's stamp is that of the read that completed it."""
    packer = zlib.compressobj(wbits=31)
    parts: list[bytes | float] = [STREAM.replace(b"Transfer", b"Content-Encoding: gzip\r\nTransfer")]
    for data in (text("Pack", [1]), text(" ice", [2], "stop"), usage(1, 2) + DONE):
        parts += [0.02, chunk(packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))]
    record = await performed(transport, Script([*parts, chunk(packer.flush()), LAST]))
    assert (kind(record), record.text, record.chunk_ambiguous) == (None, "Pack ice", [False, False])
    assert record.chunk_ns[1] - record.chunk_ns[0] > 10_000_000
    unknown = [STREAM.replace(b"Transfer", b"Content-Encoding: br\r\nTransfer"), chunk(b"\x8b\x01\x80"), LAST]
    assert kind(await performed(transport, Script(unknown))) == "malformed"


async def test_a_large_event_is_one_chunk(transport: SocketTransport) -> None:
    """A gateway may bundle everything into one line of any length."""
    ids = list(range(100_000))
    record = await performed(transport, stream(text("x" * 1_000_000, ids, "length"), usage(1, len(ids)), DONE))
    assert (kind(record), record.chunk_tokens, record.token_ids) == (None, [100_000], ids)


async def test_connections_are_opened_before_the_clock(transport: SocketTransport) -> None:
    """The first request of a lane then pays for none."""
    async with playing(OK) as server:
        ours = client(transport, server.url, Asking())
        await ours.open(2)
        kept: list[Record] = []
        await ours.perform(ours.prepare(Asking().request()), PLACE, None, kept.append)
        assert (kept[0].connect_ns, server.connections) == (None, 2)


def test_the_url_keeps_prefix_and_query() -> None:
    """And a model's name goes out unchanged."""
    asking = Asking(kind="chat", model="org/a b:c")
    target = Target("a", asking.model, dialects.load("vllm"), httpx.URL("http://[::1]:7/pre/v4?k=1"), {}, {})
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200)))
    made = Client(http, target, PATIENT, time.monotonic_ns, lambda: "0" * 32).prepare(asking.request())
    assert made.http.extensions["wire"].startswith(b"POST /pre/v4/chat/completions?k=1 HTTP/1.1\r\nHost: [::1]:7\r\n")
    assert orjson.loads(made.http.content)["model"] == "org/a b:c"


@pytest.mark.parametrize("then", ["keep", "close"])
async def test_a_request_leaves_no_garbage(transport: SocketTransport, then: Literal["keep", "close"]) -> None:
    """While a pass runs nothing collects cycles: a reply must go when its record is written, a failed one too."""
    whole = chunk(text("a", [1], "stop") + usage(1, 1) + DONE) + LAST
    async with playing(Script([STREAM + (whole if then == "keep" else chunk(text("a", [1])))], then)) as server:
        ours = client(transport, server.url, Asking())
        prepared = [ours.prepare(Asking().request()) for _ in range(3)]
        gc.collect()
        gc.disable()
        try:
            for one in prepared:
                await ours.perform(one, PLACE, None, lambda record: None)
            left = [kept for kept in gc.get_objects() if isinstance(kept, Reply | Transcript | Answer)]
        finally:
            gc.enable()
    assert not left
