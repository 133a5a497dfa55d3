"""The in-memory transport: an ASGI app as server, under virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import orjson
import pytest

from asking import PLACE, Asking, client, kind
from loadgen import virtual
from loadgen.memory import MemoryTransport
from loadgen.profile import Limits
from loadgen.record import Record
from loadgen.reply import Clock
from playback import DONE, text, usage

App = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def streaming(*parts: bytes | float, ends: bool = True, seen: list[Any] | None = None) -> App:
    """An app that sends bytes and waits floats; `seen` gets its scope and its request's body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked = await receive()
        if seen is not None:
            seen.extend([scope, asked["body"]])
        await send(HEAD)
        for part in parts:
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b""})

    return app


def performed(app: App, asking: Asking | None = None, url: str = "http://sim") -> Record:
    asking = asking or Asking()

    async def main(clock: Clock) -> Record:
        transport = MemoryTransport(app, clock)
        ours = client(transport, url, asking, clock)
        kept: list[Record] = []
        await ours.perform(ours.prepare(asking.request()), PLACE, None, kept.append)
        await transport.aclose()
        return kept[0]

    return virtual.run(main)


def test_a_reply_has_the_stamps_of_the_virtual_clock() -> None:
    """Exactly: nothing takes time but what the app waits for."""
    record = performed(streaming(0.5, text("a", [1]), 0.02, text("b", [2], "stop"), usage(1, 2) + DONE))
    sent = record.sent_ns
    assert sent is not None
    assert (record.failure, record.text, record.token_ids) == (None, "ab", [1, 2])
    assert [stamp - sent for stamp in record.chunk_ns] == [500_000_000, 520_000_000]
    assert (record.first_byte_ns, record.end_ns, record.connect_ns) == (sent, sent + 520_000_000, None)


def test_every_message_is_a_read() -> None:
    """Two events in one message came together, two messages did not, though at one instant."""
    record = performed(streaming(text("a", [1]) + text("b", [2]), text("c", [3]), text("d", [4], "stop") + DONE))
    assert record.chunk_ambiguous == [True, True, False, False]


def test_the_app_sees_an_ordinary_request() -> None:
    """Path, query, headers and body as a server would hand them on."""
    seen: list[Any] = []
    performed(streaming(text("a", [1], "stop"), DONE, seen=seen), url="http://sim?k=1")
    scope, body = seen
    said = [scope[name] for name in ("type", "method", "path", "query_string")]
    assert said == ["http", "POST", "/v1/completions", b"k=1"]
    assert dict(scope["headers"])[b"x-request-id"] == b"0" * 31 + b"1"
    assert orjson.loads(body)["model"] == "tide-1"


def test_an_app_that_stops_in_the_middle_is_a_broken_server() -> None:
    """As a server would close the connection."""
    record = performed(streaming(text("a", [1]), ends=False))
    assert (kind(record), record.text) == ("truncated", "a")


def test_limits_hold_in_virtual_time_and_the_app_is_told() -> None:
    """Fifteen idle minutes take no time, and the app learns that its client left."""
    told: list[str] = []

    async def hanging(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(HEAD)
        await send({"type": "http.response.body", "body": text("a", [1]), "more_body": True})
        told.append((await receive())["type"])
        with pytest.raises(OSError, match="gone"):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        told.append("refused")

    record = performed(hanging, Asking(limits=Limits(idle_s=900, request_s=3600)))
    assert (kind(record), told) == ("stalled", ["http.disconnect", "refused"])
    assert record.end_ns is not None
    assert record.sent_ns is not None
    assert record.end_ns - record.sent_ns == 900_000_000_000


def test_a_cancelled_request_tells_the_app() -> None:
    """Its record is kept."""
    told: list[str] = []
    kept: list[Record] = []

    async def hanging(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        told.append((await receive())["type"])

    async def main(clock: Clock) -> None:
        transport = MemoryTransport(hanging, clock)
        ours = client(transport, "http://sim", Asking(), clock)
        task = asyncio.create_task(ours.perform(ours.prepare(Asking().request()), PLACE, None, kept.append))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        await transport.aclose()

    virtual.run(main)
    assert (told, [kind(record) for record in kept]) == (["http.disconnect"], ["cancelled"])


def test_a_bug_of_the_app_is_loud() -> None:
    """In here the server is ours: its exception is no failure of a request."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        performed(broken)


def test_it_serves_an_ordinary_httpx_client() -> None:
    """For models, metrics and scores."""

    async def main(clock: Clock) -> bytes:
        async with httpx.AsyncClient(transport=MemoryTransport(streaming(b"a", b"b"), clock)) as http:
            return (await http.get("http://sim/metrics")).content

    assert virtual.run(main) == b"ab"
