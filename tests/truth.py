"""A streaming server that knows when it sent each chunk: what a load client's clock is held against.

    python tests/truth.py --port 0 --first-ms 20 --gap-ms 20 --chunk-bytes 250 --tokens 1

Prints its port. POST …/completions streams chunks of so many token ids until max_tokens, on an absolute schedule,
and keeps the moment before each write (time.monotonic_ns, which every process of the machine shares).
GET /sent gives {request id: {"received_ns", "sent_ns": […]}} and forgets them; GET /load {"cpu_s", "late_p99_ms"}.
"""

import argparse
import asyncio
import resource
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

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

    def __init__(self, wire: asyncio.Transport, truth: Truth, request_id: str, chat: bool, tokens: int) -> None:
        self.wire, self.truth, self.chat, self.left, self.asked = wire, truth, chat, tokens, tokens
        self.sent_ns: list[int] = []
        truth.sent[request_id] = {"received_ns": time.monotonic_ns(), "sent_ns": self.sent_ns}
        self.loop = asyncio.get_running_loop()
        wire.write(HEAD)
        self.due_s = self.loop.time() + truth.first_s
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


class Wire(asyncio.Protocol):
    """One connection; the on_… are httptools'."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.stream: Stream | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.stream is not None:
            self.stream.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

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
            self.stream = Stream(self.transport, self.truth, name, "/chat/" in self.url, tokens)
        else:
            answer = orjson.dumps(self.page())
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
            self.transport.write(head + answer)

    def page(self) -> dict[str, Any]:
        if self.url.endswith("/sent"):
            sent = self.truth.sent.copy()
            self.truth.sent.clear()
            return sent
        if self.url.endswith("/models"):
            return {"object": "list", "data": [{"id": "truth", "object": "model", "owned_by": "truth"}]}
        used, late = resource.getrusage(resource.RUSAGE_SELF), sorted(self.truth.late_s)
        p99 = late[int(0.99 * len(late))] * 1e3 if late else None
        return {"cpu_s": used.ru_utime + used.ru_stime, "late_p99_ms": p99}


async def serve(truth: Truth, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Wire(truth), "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - what the caller waits for
    await server.serve_forever()


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
