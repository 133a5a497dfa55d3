"""One HTTP exchange over ASGI's three callables, without a framework."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class Gone(Exception):
    """The client hung up before its request or its answer was whole."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request to read and its answer to send."""

    scope: MutableMapping[str, Any]
    receive: Receive
    send: Send

    def header(self, name: bytes) -> str | None:
        """The first value of a header, whose name is given in lower case; None where it was not sent."""
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key.lower() == name), None)

    async def body(self) -> bytes:
        parts = []
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def disconnected(self) -> None:
        """Returns when the client has hung up. To be awaited once the body has been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def answer(self, body: bytes, kind: bytes = JSON, status: int = 200) -> None:
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await self._start(status, headers)
        await self.write(body, last=True)

    async def answer_json(self, content: Any, status: int = 200) -> None:
        await self.answer(orjson.dumps(content), status=status)

    async def open_stream(self) -> None:
        headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache")]
        await self._start(200, headers)

    async def write(self, chunk: bytes, last: bool) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": not last})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _send(self, message: Message) -> None:
        try:
            await self.send(message)
        except OSError as error:  # what an ASGI 2.4 server raises once the client is gone
            raise Gone from error
