"""A real local server that plays given bytes, write for write, one script a request."""

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


@dataclass(frozen=True)
class Script:
    """Bytes are sent, floats are waited (seconds)."""

    parts: Sequence[bytes | float]
    then: Literal["keep", "close", "reset", "hang"] = "keep"


@dataclass
class Played:
    url: str
    scripts: tuple[Script, ...]
    requests: list[bytes] = field(default_factory=list)
    sends: list[list[int]] = field(default_factory=list)  # a request's: the moment before each of its bytes parts
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a client left before its script was over


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(**body: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)


def text(said: str, ids: list[int] | None = None, finish: str | None = None, **more: object) -> bytes:
    """One completions event."""
    given = {} if ids is None else {"token_ids": ids}
    return event(choices=[{"index": 0, "text": said, "finish_reason": finish, **given, **more}])


def delta(finish: str | None = None, **said: object) -> bytes:
    """One chat event."""
    return event(choices=[{"index": 0, "delta": said, "finish_reason": finish}])


def usage(prompt: int, completion: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion})


DONE = b"data: [DONE]\n\n"


def stream(*events: bytes) -> Script:
    """A chunked event stream, every event a write of its own, far enough apart to be a read of its own."""
    parts: list[bytes | float] = [STREAM]
    for part in events:
        parts += [0.01, chunk(part)]
    return Script([*parts, LAST])


def answer(status: int, body: bytes, kind: str = "application/json", more: str = "") -> Script:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return Script([head.encode() + body])


@contextlib.asynccontextmanager
async def playing(
    *scripts: Script, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Played]:
    """Script i answers request i, the last one all that follow."""
    played = Played("", scripts)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        played.connections += 1
        try:
            while await _request(reader, played):
                if not await _play(reader, writer, played):
                    break
        except ConnectionError:
            played.gone.set()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    played.url = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        yield played
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0.01)  # transports close a turn later


async def _request(reader: asyncio.StreamReader, played: Played) -> bool:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return False
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    played.requests.append(head + (await reader.readexactly(int(length[1])) if length else b""))
    return True


async def _play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, played: Played) -> bool:
    """Whether the connection may carry another request."""
    script = played.scripts[min(len(played.requests), len(played.scripts)) - 1]
    played.sends.append([])
    sent = played.sends[-1]
    for part in script.parts:
        if isinstance(part, float):
            await asyncio.sleep(part)
        else:
            sent.append(time.monotonic_ns())
            writer.write(part)
            await writer.drain()
    if script.then == "hang":
        await reader.read(1)
        played.gone.set()
    if script.then == "reset":
        await asyncio.sleep(0.03)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    return script.then == "keep"
