"""httpx's own transport in the place of ours: the same records, with stamps of the read."""

import asyncio
import dataclasses
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from asking import OK, Asking, at, kind, performed
from loadgen.plain import PlainTransport
from loadgen.profile import Limits
from loadgen.record import Record, Run
from loadgen.transport import SocketTransport
from playback import DONE, STREAM, Script, answer, chunk, playing, stream, text, usage
from servers import launch

ANSWERS = {
    "a whole reply": OK,
    "a refusal": answer(429, b'{"error": {"message": "slow down"}}'),
    "a body that ends early": Script([STREAM, 0.02, chunk(text("a", [1]))], then="close"),
    "a connection that breaks": Script([STREAM, 0.02, chunk(text("a", [1]))], then="reset"),
    "no answer at all": Script([], then="close"),
    "no HTTP": Script([b"220 mail.example ready\r\n\r\n"], then="close"),
    "a stream that stalls": Script([STREAM, 0.02, chunk(text("a", [1]))], then="hang"),
}
IMPATIENT = Asking(limits=Limits(connect_s=5, first_token_s=5, idle_s=0.2, request_s=5))


@pytest.fixture
async def plain() -> AsyncIterator[PlainTransport]:
    transport = PlainTransport(trust_env=False)
    yield transport
    await transport.aclose()


def outcome(record: Record) -> dict[str, object]:
    """All but the stamps, and the words of a failure."""
    timed = ("connect_ns", "sent_ns", "first_byte_ns", "end_ns", "chunk_ns", "failure")
    fields = {name: value for name, value in dataclasses.asdict(record).items() if name not in timed}
    return fields | {"kind": kind(record), "chunks": len(record.chunk_ns)}


@pytest.mark.parametrize("name", ANSWERS)
async def test_the_record_is_the_one_of_our_own_transport(plain: PlainTransport, name: str) -> None:
    """Whatever a server does: the same kind of failure, text, ids, status and counts either way."""
    ours = SocketTransport()
    expected = await performed(ours, ANSWERS[name], IMPATIENT)
    await ours.aclose()

    assert outcome(await performed(plain, ANSWERS[name], IMPATIENT)) == outcome(expected)


async def test_stamps_are_in_order(plain: PlainTransport) -> None:
    """Sent, head, chunks, end; the first request has opened its connection."""
    record = await performed(plain, OK)
    stamps = [record.sent_ns, record.first_byte_ns, *record.chunk_ns, record.end_ns]

    assert None not in stamps
    assert stamps == sorted(stamp for stamp in stamps if stamp is not None)
    assert record.connect_ns is not None


async def test_a_connection_is_kept_for_the_next_request(plain: PlainTransport) -> None:
    """As ours does."""
    async with playing(OK) as server:
        records = [await at(plain, server.url, Asking()) for _ in range(3)]

        assert server.connections == 1
    assert [record.connect_ns is None for record in records] == [False, True, True]


async def test_a_server_that_is_not_there(plain: PlainTransport) -> None:
    """A refused connection is a record with its kind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    assert kind(await at(plain, f"http://127.0.0.1:{port}", Asking())) == "connect"


async def test_a_server_without_tls(plain: PlainTransport) -> None:
    """https:// to a plain server is of kind tls."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert kind(await at(plain, url, Asking())) == "tls"


async def test_a_request_that_is_cut_off_leaves_the_server(plain: PlainTransport) -> None:
    """Cancelling it closes its connection, so that the server stops working for nobody."""
    async with playing(Script([STREAM, chunk(text("a", [1]))], then="hang")) as server:
        task = asyncio.create_task(at(plain, server.url, Asking()))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 5)


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is asked for the whole URL."""
    async with playing(stream(text("a", [1], finish="stop"), usage(1, 1), DONE)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        transport = PlainTransport()
        record = await at(transport, "http://model.invalid", Asking())
        await transport.aclose()

        assert proxy.requests[0].startswith(b"POST http://model.invalid/v1/completions HTTP/1.1\r\n")
    assert (kind(record), record.text) == (None, "a")


async def test_a_broken_header_is_a_broken_set_up(plain: PlainTransport) -> None:
    """What we ourselves do wrong is raised, and no record says that the server failed."""
    with pytest.raises(httpx.UnsupportedProtocol):
        await at(plain, "ftp://127.0.0.1:9", Asking())


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_a_run_over_httpx_warns_and_says_what_its_stamps_are(tmp_path: Path, workers: list[str]) -> None:
    """One warning on standard error; the run's anchors say "read" and run.json names the way."""
    recipe = launch.load_recipe("sim")
    with launch.start(recipe, launch.parse_settings(recipe, ["step_ms=2"])) as server:
        server.wait_healthy(60)
        load = ["--requests", "8", "--lanes", "4", "--max-tokens", "8", "--http-backend", "httpx", *workers]
        call = [sys.executable, "-m", "loadgen", "run", server.url, *load, "--out", str(tmp_path / "run")]
        said = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    run = Run.open(tmp_path / "run")

    assert said.returncode == 0, said.stderr
    assert said.stderr.count("--http-backend httpx stamps") == 1
    assert {anchor.stamps for anchor in run.anchors()} == {"read"}
    assert run.asked["drivers"]["backend"] == "httpx"
    assert [r.failure for r in run.records() if r.phase == "timed"] == [None] * 8


async def _speak_http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One reply to one request, by the library of that protocol."""
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.events import StreamEnded

    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    writer.write(connection.data_to_send())
    while data := await reader.read(1 << 16):
        for seen in connection.receive_data(data):
            if isinstance(seen, StreamEnded):
                connection.send_headers(seen.stream_id, [(":status", "200"), ("content-type", "text/event-stream")])
                for part in (text("a", [1]), text("b", [2], finish="stop"), usage(1, 2), DONE):
                    connection.send_data(seen.stream_id, part)
                    writer.write(connection.data_to_send())
                    await asyncio.sleep(0.01)
                connection.end_stream(seen.stream_id)
        writer.write(connection.data_to_send())
    writer.close()


async def test_http2_is_spoken_where_its_library_is_installed(certificate: Path) -> None:
    """Agreed on under TLS; the record has every stamp that HTTP/1.1 gives."""
    pytest.importorskip("h2")
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate)
    server_side.set_alpn_protocols(["h2"])
    transport = PlainTransport(ssl.create_default_context(cafile=str(certificate)), trust_env=False)
    async with await asyncio.start_server(_speak_http2, "127.0.0.1", 0, ssl=server_side) as server:
        record = await at(transport, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", Asking())
        await transport.aclose()
    stamps = [record.sent_ns, record.first_byte_ns, *record.chunk_ns, record.end_ns]

    assert (kind(record), record.token_ids, record.finish_reason) == (None, [1, 2], "stop")
    assert stamps == sorted(stamp for stamp in stamps if stamp is not None)
