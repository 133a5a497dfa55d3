"""A streaming server that knows when it sent each chunk: what a load client's clock is held against.

    python -m loadgen.truth --port 0 --first-ms 20 --gap-ms 20 --chunk-bytes 250 --tokens 1

Prints its port. POST …/completions streams chunks of so many token ids until max_tokens, on an absolute schedule,
and keeps the moment before each write (time.monotonic_ns, which every process of the machine shares) and the moment
when the kernel had the request. GET /sent gives {request id: {"received_ns", "sent_ns": […]}} and forgets them;
GET /load {"cpu_s", "late_p99_ms"}, the lateness of its own timers since the last /sent.
"""

import argparse
import asyncio
import contextlib
import resource
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)  # Python names it from 3.13 on
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Truth:
    """What the server does, and all that it did."""

    first_s: float
    gap_s: float
    chunk_bytes: int
    tokens: int  # a chunk
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)
    late_s: deque[float] = field(default_factory=lambda: deque(maxlen=1_000_000))
    prepared: dict[tuple[bool, int], bytes] = field(default_factory=dict)

    def chunk(self, chat: bool, tokens: int) -> bytes:
        if (chat, tokens) not in self.prepared:
            choice = self.choice(chat, " a" * tokens, list(range(100, 100 + tokens)), None)
            self.prepared[chat, tokens] = framed(event(body(chat, choices=[choice]), self.chunk_bytes))
        return self.prepared[chat, tokens]

    def tail(self, chat: bool, tokens: int) -> bytes:
        last = event(body(chat, choices=[self.choice(chat, "", [], "length")]))
        usage = event(body(chat, choices=[], usage={"prompt_tokens": 1, "completion_tokens": tokens}))
        return b"".join(framed(part) for part in (last, usage, b"data: [DONE]\n\n")) + b"0\r\n\r\n"

    def choice(self, chat: bool, text: str, ids: list[int], finish: str | None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        return {"index": 0, **said, "token_ids": ids, "finish_reason": finish}


def body(chat: bool, **fields: Any) -> dict[str, Any]:
    """Some clients take no event that does not say what it is."""
    return {"object": "chat.completion.chunk" if chat else "text_completion", **fields}


def event(body: dict[str, Any], size: int = 0) -> bytes:
    bare = b"data: %b\n\n" % orjson.dumps(body)
    if len(bare) + len(',"pad":""') > size:
        return bare
    return b"data: %b\n\n" % orjson.dumps(body | {"pad": "x" * (size - len(bare) - len(',"pad":""'))})


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Stream:
    """One reply on its way: chunk i is due at start + first + i·gap, however late the one before was."""

    def __init__(self, wire: "Wire", request_id: str, chat: bool, tokens: int) -> None:
        self.wire, self.truth, self.chat, self.left, self.asked = wire, wire.truth, chat, tokens, tokens
        self.sent_ns: list[int] = []
        self.truth.sent[request_id] = {"received_ns": wire.arrived_ns, "sent_ns": self.sent_ns}
        self.loop = asyncio.get_running_loop()
        wire.write(HEAD)
        self.due_s = self.loop.time() + self.truth.first_s
        self.timer = self.loop.call_at(self.due_s, self.step)

    def step(self) -> None:
        self.truth.late_s.append(self.loop.time() - self.due_s)
        now = min(self.truth.tokens, self.left)
        data = self.truth.chunk(self.chat, now)
        self.sent_ns.append(time.monotonic_ns())
        self.wire.write(data)
        self.left -= now
        if self.left:
            self.due_s += self.truth.gap_s
            self.timer = self.loop.call_at(self.due_s, self.step)
        else:
            self.wire.write(self.truth.tail(self.chat, self.asked))


class Wire:
    """One connection; the on_… are httptools'.

    The socket is ours alone, so that a request has the kernel's stamp of its arrival: one of our own would be late by
    all that this process does first, and a client would seem to be wrong by as much.
    """

    def __init__(self, sock: socket.socket, truth: Truth) -> None:
        self.sock, self.truth = sock, truth
        self.stream: Stream | None = None
        self.unsent = bytearray()  # what the socket would not take yet
        self.parser = httptools.HttpRequestParser(self)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(sock, self.readable)

    def readable(self) -> None:
        try:
            data, ancillary, _, _ = self.sock.recvmsg(1 << 16, 64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.arrived_ns = arrival_ns(ancillary)
            self.parser.feed_data(data)
        else:
            self.close()

    def write(self, data: bytes) -> None:
        if self.unsent:
            self.unsent += data
        elif rest := data[self.send(data) :]:
            self.unsent += rest
            self.loop.add_writer(self.sock, self.writable)

    def send(self, data: bytes | bytearray) -> int:
        """How many bytes are dealt with; what a client that went away does not take is."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def writable(self) -> None:
        del self.unsent[: self.send(self.unsent)]
        if not self.unsent:
            self.loop.remove_writer(self.sock)

    def close(self) -> None:
        if self.stream is not None:
            self.stream.timer.cancel()
        self.loop.remove_reader(self.sock)
        self.loop.remove_writer(self.sock)
        self.sock.close()

    def on_message_begin(self) -> None:
        self.body, self.request_id = b"", ""

    def on_url(self, url: bytes) -> None:
        self.url = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self.request_id = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.url.endswith("completions"):
            asked = orjson.loads(self.body)
            tokens = asked.get("max_tokens") or asked["max_completion_tokens"]
            name = self.request_id or f"unnamed-{len(self.truth.sent)}"
            self.stream = Stream(self, name, "/chat/" in self.url, tokens)
        else:
            answer = orjson.dumps(self.page())
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
            self.write(head + answer)

    def page(self) -> dict[str, Any]:
        if self.url.endswith("/sent"):
            sent = self.truth.sent.copy()
            self.truth.sent.clear()
            self.truth.late_s.clear()
            return sent
        if self.url.endswith("/models"):
            return {"object": "list", "data": [{"id": "truth", "object": "model", "owned_by": "truth"}]}
        used, late = resource.getrusage(resource.RUSAGE_SELF), sorted(self.truth.late_s)
        p99 = late[int(0.99 * len(late))] * 1e3 if late else None
        return {"cpu_s": used.ru_utime + used.ru_stime, "late_p99_ms": p99}


def arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The kernel's stamp on the monotonic clock; our own where it gives none."""
    now_ns, realtime_ns = time.monotonic_ns(), time.time_ns()
    if not ancillary:
        return now_ns
    seconds, nanoseconds = struct.unpack("@qq", ancillary[0][2])
    return int(now_ns - realtime_ns + seconds * 1_000_000_000 + nanoseconds)


def stamped(sock: socket.socket) -> None:
    sock.setblocking(False)
    if sys.platform == "linux":
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


async def serve(truth: Truth, port: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=4096) as listener:
        stamped(listener)

        def accept() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock, _ = listener.accept()
                    stamped(sock)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    Wire(sock, truth)

        asyncio.get_running_loop().add_reader(listener, accept)
        print(listener.getsockname()[1], flush=True)  # noqa: T201 - what the caller waits for
        await asyncio.get_running_loop().create_future()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first-ms", type=float, default=20)
    parser.add_argument("--gap-ms", type=float, default=20)
    parser.add_argument("--chunk-bytes", type=int, default=250)
    parser.add_argument("--tokens", type=int, default=1)
    given = parser.parse_args()
    truth = Truth(given.first_ms / 1e3, given.gap_ms / 1e3, given.chunk_bytes, given.tokens)
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run  # type: ignore[assignment]
    run(serve(truth, given.port))


if __name__ == "__main__":
    main()
