"""A transport that calls an ASGI app in this process: no sockets, the app's messages are the reads."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal, Protocol

import httpx

from loadgen.reply import Clock, Reply, Truncated

Message = dict[str, Any]


class App(Protocol):
    """An ASGI 3 application."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]: ...


class MemoryTransport(httpx.AsyncBaseTransport):
    """Stamps every body message when the app sends it. The Reply is filled as by SocketTransport.

    An exception of the app's own is raised as it is: in here the server is ours, and its bugs must be loud.
    """

    stamps: Literal["virtual"] = "virtual"

    def __init__(self, app: App, clock: Clock) -> None:
        self._app = app
        self._clock = clock
        self._running: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        reply: Reply = request.extensions.setdefault("reply", Reply())
        exchange = _Exchange(request, reply, self._clock)
        reply.sent_ns = self._clock()
        task = asyncio.get_running_loop().create_task(self._app(exchange.scope(), exchange.receive, exchange.send))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(exchange.settle)
        try:
            await reply.wait()
        finally:
            exchange.disconnect()
        if exchange.bug is not None:
            raise exchange.bug
        return reply.response()

    async def aclose(self) -> None:
        """Waits for the apps to see that their clients are gone; cancels those that don't look."""
        await asyncio.sleep(0)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)


class _Exchange:
    """One call of the app."""

    def __init__(self, request: httpx.Request, reply: Reply, clock: Clock) -> None:
        self._request, self._reply, self._clock = request, reply, clock
        self._asked = False
        self._gone = asyncio.Event()
        self.bug: BaseException | None = None

    def settle(self, app: "asyncio.Task[None]") -> None:
        """The app has returned. Where its answer was not whole by then, a server closes the connection."""
        now_ns = self._clock()
        if app.cancelled():
            self._reply.end(now_ns, httpx.ReadError("The transport was closed."))
        elif app.exception() is not None and not self._reply.ended:
            self.bug = app.exception()
            self._reply.end(now_ns)
        else:
            self._reply.end(now_ns, Truncated("The app ended before its answer did."))

    def disconnect(self) -> None:
        self._gone.set()

    def scope(self) -> dict[str, Any]:
        url = self._request.url
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "client": ("127.0.0.1", 0),
            "server": (url.host, url.port or 80),
        }

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._request.content, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._gone.is_set():
            raise OSError("The client is gone.")  # what ASGI 2.4 says a server does
        reply, now_ns = self._reply, self._clock()
        if message["type"] == "http.response.start":
            reply.first_byte_ns = now_ns
            reply.status = message["status"]
            reply.headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            return
        body = message.get("body", b"")
        if body:
            reply.reads.append((now_ns, bytes(body)))
        if not message.get("more_body", False):
            reply.end(now_ns)
