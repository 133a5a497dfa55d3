"""The socket transport: what came, when, and over which connection."""

import asyncio
import gzip
import socket
import ssl
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from loadgen.reply import Reply, Truncated
from loadgen.transport import SocketTransport, TlsError, encode
from playback import LAST, STREAM, Script, answer, chunk, playing, stream

OK = answer(200, b"{}")


@pytest.fixture(params=["kernel", "read"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[SocketTransport]:
    made = SocketTransport(kernel_stamps=request.param == "kernel")
    if made.stamps != request.param:
        pytest.skip("no kernel stamps here")
    yield made
    await made.aclose()


async def sent(transport: SocketTransport, url: str, content: bytes = b"{}") -> Reply:
    request = httpx.Request("POST", url, content=content)
    await transport.handle_async_request(request)
    reply: Reply = request.extensions["reply"]
    return reply


async def broken(transport: SocketTransport, url: str, kind: type[httpx.TransportError]) -> Reply:
    request = httpx.Request("POST", url, content=b"{}")
    with pytest.raises(kind) as raised:
        await transport.handle_async_request(request)
    assert kind is type(raised.value)
    reply: Reply = request.extensions["reply"]
    return reply


def body(reply: Reply) -> bytes:
    return b"".join(piece for _, piece in reply.reads)


async def test_every_read_has_its_own_stamp_in_order(transport: SocketTransport) -> None:
    """Pieces that arrived apart are apart, with stamps between the request's sending and now."""
    async with playing(stream(b"one", b"two", b"three")) as server:
        began = time.monotonic_ns()
        reply = await sent(transport, server.url)
    stamps = [stamp for stamp, _ in reply.reads]
    assert [piece for _, piece in reply.reads] == [b"one", b"two", b"three"]
    assert reply.sent_ns is not None
    assert reply.first_byte_ns is not None
    assert reply.end_ns is not None
    assert began <= reply.sent_ns <= reply.first_byte_ns <= stamps[0]
    assert stamps == sorted(stamps)
    assert all(later - earlier > 5_000_000 for earlier, later in pairwise(stamps))
    assert stamps[-1] <= reply.end_ns <= time.monotonic_ns()


async def test_pieces_of_one_write_share_one_entry(transport: SocketTransport) -> None:
    """The index of an entry is the index of its read."""
    async with playing(Script([STREAM + chunk(b"a") + chunk(b"b"), 0.02, chunk(b"c") + LAST])) as server:
        reply = await sent(transport, server.url)
    assert [piece for _, piece in reply.reads] == [b"ab", b"c"]


async def test_a_connection_is_kept_for_the_next_request(transport: SocketTransport) -> None:
    """The second request pays for none."""
    async with playing(OK) as server:
        first, second = await sent(transport, server.url), await sent(transport, server.url)
        assert server.connections == 1
    assert first.connect_ns is not None
    assert second.connect_ns is None


async def test_connections_opened_beforehand_cost_a_request_nothing(transport: SocketTransport) -> None:
    """Five lanes, five open connections, and asking again opens none."""
    async with playing(OK) as server:
        await transport.open(httpx.URL(server.url), 5)
        await transport.open(httpx.URL(server.url), 5)
        replies = await asyncio.gather(*(sent(transport, server.url) for _ in range(5)))
        assert server.connections == 5
    assert [reply.connect_ns for reply in replies] == [None] * 5


async def test_a_stale_kept_connection_is_replaced_once(transport: SocketTransport) -> None:
    """A server may close a kept connection at any time: that is no failure of the request."""
    closing_while_idle = Script([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 0.01], then="close")
    async with playing(closing_while_idle, OK) as server:
        await sent(transport, server.url)
        await asyncio.sleep(0.05)
        reply = await sent(transport, server.url)
        assert reply.status == 200
        assert server.connections == 2


async def test_a_kept_connection_closed_on_our_request_is_replaced_once(transport: SocketTransport) -> None:
    """The close and the request cross: nothing of an answer came, so the request goes out over a fresh connection."""
    async with playing(OK, Script([], then="close"), OK) as server:
        await sent(transport, server.url)
        assert (await sent(transport, server.url)).status == 200
        assert server.connections == 2
    async with playing(Script([], then="close")) as server:
        reply = await broken(transport, server.url, httpx.ReadError)
        assert server.connections == 1, "a fresh connection is not tried again"
        assert reply.status is None


@pytest.mark.parametrize(
    ("parts", "expected", "why"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"], b"abc", "a length"),
        ([b"HTTP/1.1 200 OK\r\n\r\nab", 0.02, b"c"], b"abc", "no length: the close is the end"),
        ([b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nabc"], b"abc", "HTTP/1.0"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", 0.02, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 0.02,
          b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"], b"abc", "interim answers are skipped"),
        ([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"], b"abc", "in one read too"),
        ([STREAM, b"2\r", 0.02, b"\nab\r\n", 0.02, b"1;x=y\r\nc", b"\r\n0\r\nT: x\r\n", b"\r\n"], b"abc", "cut up"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b"", "no body"),
    ],
)  # fmt: skip
async def test_bodies(transport: SocketTransport, parts: list[bytes | float], expected: bytes, why: str) -> None:
    """However a body is framed, its bytes and the final head come out."""
    async with playing(Script(parts, then="close")) as server:
        reply = await sent(transport, server.url)
    assert expected == body(reply), why
    assert reply.whole
    assert reply.status in (200, 204)
    assert reply.header(b"link") is None


@pytest.mark.parametrize(
    ("script", "kind", "kept"),
    [
        (Script([STREAM + chunk(b"a")], then="reset"), httpx.ReadError, b"a"),
        (Script([STREAM + chunk(b"a")], then="close"), Truncated, b"a"),
        (Script([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"], then="close"), Truncated, b"abc"),
        (Script([], then="close"), httpx.ReadError, b""),
        (Script([b"HTTP/1.1 200 "], then="close"), httpx.ReadError, b""),
        (Script([b"SSH-2.0-OpenSSH_9\r\n"], then="hang"), httpx.RemoteProtocolError, b""),
        (Script([STREAM + b"zz\r\n"], then="hang"), httpx.RemoteProtocolError, b""),
    ],
)  # fmt: skip
async def test_a_broken_answer_keeps_what_came(
    transport: SocketTransport, script: Script, kind: type[httpx.TransportError], kept: bytes
) -> None:
    """The error says how it broke; the reply has the bytes up to there."""
    async with playing(script) as server:
        reply = await broken(transport, server.url, kind)
    assert kept == body(reply)
    assert not reply.whole


async def test_a_server_that_switches_protocols_is_given_up(transport: SocketTransport) -> None:
    """101 is an answer like any other, but nothing of ours can follow it."""
    switching = Script([b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n\0\0"])
    async with playing(switching, OK) as server:
        assert (await sent(transport, server.url)).status == 101
        assert (await sent(transport, server.url)).status == 200
        assert server.connections == 2


async def test_bytes_behind_an_answer_do_not_become_the_next_one(transport: SocketTransport) -> None:
    """The connection is given up instead."""
    overfull = Script([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"])
    async with playing(overfull, OK) as server:
        assert (await sent(transport, server.url)).status == 200
        assert (await sent(transport, server.url)).status == 200
        assert server.connections == 2


async def test_nobody_listens(transport: SocketTransport) -> None:
    """A refused connection is a ConnectError; one that never comes a ConnectTimeout."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    await broken(transport, f"http://127.0.0.1:{port}", httpx.ConnectError)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, socket.socket() as first, socket.socket() as second:
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        request = httpx.Request("GET", url, extensions={"timeout": {"connect": 0.1}})
        with pytest.raises(httpx.ConnectTimeout):
            await transport.handle_async_request(request)


async def test_a_request_larger_than_the_sockets_buffers_goes_out_whole(transport: SocketTransport) -> None:
    """sent_ns is the moment of its last byte, not its first."""
    async with playing(OK) as server:
        large = b"x" * (8 << 20)
        reply = await sent(transport, server.url, large)
        assert server.requests[0].endswith(large)
    assert reply.sent_ns is not None
    assert reply.first_byte_ns is not None
    assert reply.sent_ns <= reply.first_byte_ns


async def test_an_answer_that_comes_before_the_request_is_out(transport: SocketTransport) -> None:
    """A server that refuses a large body is heard, and the connection given up."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    reply = await sent(transport, f"http://127.0.0.1:{port}", b"x" * (64 << 20))
    assert reply.status == 413
    server.close()
    await asyncio.sleep(0.4)


async def test_a_cancelled_request_closes_its_connection(transport: SocketTransport) -> None:
    """The server sees it, and the next request has another one."""
    async with playing(Script([STREAM + chunk(b"a")], then="hang"), OK) as server:
        task = asyncio.create_task(sent(transport, server.url))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.wait_for(server.gone.wait(), 2)
        assert (await sent(transport, server.url)).status == 200


async def test_it_serves_an_ordinary_httpx_client(transport: SocketTransport) -> None:
    """JSON, content coding and the read limit, for the requests that nobody times."""
    packed = gzip.compress(b'{"a": 1}')
    script = answer(200, packed, more="Content-Encoding: gzip\r\n")
    async with playing(script, Script([], then="hang")) as server, httpx.AsyncClient(transport=transport) as http:
        assert (await http.get(server.url)).json() == {"a": 1}
        with pytest.raises(httpx.ReadTimeout):
            await http.get(server.url, timeout=0.1)


async def test_an_ipv6_literal_keeps_its_brackets_in_the_host_header(transport: SocketTransport) -> None:
    """And is connected to without them."""
    try:
        async with playing(OK, host="::1") as server:
            assert (await sent(transport, server.url)).status == 200
            assert f"Host: {server.url.removeprefix('http://')}\r\n".encode() in server.requests[0]
    except OSError:
        pytest.skip("no IPv6 here")


async def test_tls_that_fails_is_told_from_a_connection_that_fails(transport: SocketTransport) -> None:
    """A server without TLS under https:// is a TlsError."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    await broken(transport, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", TlsError)
    server.close()


def test_a_header_that_would_break_the_framing_is_refused() -> None:
    """A key with a line end from a file must not become a second header."""
    request = httpx.Request("GET", "http://a/", headers=[(b"X-Key", b"a\r\nX-More: b")])
    with pytest.raises(httpx.LocalProtocolError):
        encode(request)


async def test_the_clocks_distance_is_taken_anew() -> None:
    """sync says how far it moved: nothing to speak of on a quiet machine, all of it after a step."""
    steps = [0]
    transport = SocketTransport(clock=lambda: time.monotonic_ns() + steps[0])
    assert transport.sync() < 1_000_000
    steps[0] = 5_000_000_000
    assert abs(transport.sync() - 5_000_000_000) < 1_000_000
    await transport.aclose()


async def test_tls_is_stamped_by_us(certificate: Path) -> None:
    """The kernel stamps packets, not what they decrypt to: the transport says read."""
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate)
    transport = SocketTransport(verify=ssl.create_default_context(cafile=str(certificate)))
    async with playing(stream(b"one", b"two"), tls=server_side) as server:
        large = b"x" * (4 << 20)
        reply = await sent(transport, server.url, large)
        assert (await sent(transport, server.url)).connect_ns is None
        assert server.requests[0].endswith(large)
        assert [piece for _, piece in reply.reads] == [b"one", b"two"]
        assert transport.stamps == "read"
        strict = SocketTransport()
        await broken(strict, server.url, TlsError)
        await strict.aclose()
        await transport.aclose()


def test_it_runs_on_uvloop() -> None:
    """The same bytes, stamps and reuse on the faster loop, by both ways of reading."""
    uvloop = pytest.importorskip("uvloop")

    async def drive(kernel_stamps: bool) -> None:
        transport = SocketTransport(kernel_stamps=kernel_stamps)
        async with playing(stream(b"one", b"two"), Script([STREAM + chunk(b"a")], then="reset")) as server:
            await transport.open(httpx.URL(server.url), 2)
            reply = await sent(transport, server.url, b"x" * (8 << 20))
            assert [piece for _, piece in reply.reads] == [b"one", b"two"]
            assert body(await broken(transport, server.url, httpx.ReadError)) == b"a"
            await transport.aclose()

    for kernel_stamps in (True, False):
        uvloop.run(drive(kernel_stamps))
