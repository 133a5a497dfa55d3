"""httpx's own way to a server, for what ours has not: proxies and HTTP/2. Stamps are of when Python got the bytes."""

import asyncio
import importlib.util
import ssl
import time
from typing import Any, Literal

import httpx

from loadgen import headroom
from loadgen.reply import Clock, Reply, Truncated
from loadgen.transport import TlsError


class PlainTransport(httpx.AsyncBaseTransport):
    """Fills the Reply as SocketTransport does, from httpx's public face. HTTP/2 where the package h2 is installed.

    trust_env: proxies of the environment are used.
    """

    stamps: Literal["read"] = "read"

    def __init__(
        self, verify: ssl.SSLContext | bool = True, clock: Clock = time.monotonic_ns, trust_env: bool = True
    ) -> None:
        self._clock = clock
        self._http = httpx.AsyncClient(
            verify=verify,
            trust_env=trust_env,
            http2=importlib.util.find_spec("h2") is not None,
            timeout=None,  # noqa: S113 - the profile's limits are the client's own
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        reply: Reply = request.extensions.setdefault("reply", Reply())
        exchange = asyncio.get_running_loop().create_task(self._exchange(request, reply))
        try:
            await reply.ended_or(exchange)
        finally:
            exchange.cancel()
            await asyncio.wait([exchange])
        if not exchange.cancelled():
            exchange.result()  # a bug, or a limit of this machine
        await reply.wait()
        return reply.response()

    async def _exchange(self, request: httpx.Request, reply: Reply) -> None:
        request.extensions["trace"] = _Stamps(reply, self._clock)
        try:
            answer = await self._http.send(request, stream=True)
            reply.status, reply.headers = answer.status_code, answer.headers.raw
            try:
                async for piece in answer.aiter_raw():
                    reply.reads.append((self._clock(), piece))
                reply.end(self._clock())
            finally:
                await answer.aclose()
        except httpx.TransportError as error:
            for cause in _causes(error):
                if isinstance(cause, OSError) and (ours := headroom.refused_here(cause)) is not None:
                    raise ours from error
            reply.end(self._clock(), _translated(error, reply))

    async def aclose(self) -> None:
        await self._http.aclose()


class _Stamps:
    """Called by httpx's trace extension at every step of an exchange."""

    def __init__(self, reply: Reply, clock: Clock) -> None:
        self._reply, self._clock = reply, clock
        self._connecting_ns = 0

    async def __call__(self, step: str, info: dict[str, Any]) -> None:
        _, _, what = step.partition(".")
        now_ns = self._clock()
        if what == "connect_tcp.started":
            self._connecting_ns = now_ns
        elif what in ("connect_tcp.complete", "start_tls.complete"):
            self._reply.connect_ns = now_ns - self._connecting_ns
        elif what == "send_request_body.complete":
            self._reply.sent_ns = now_ns
        elif what == "receive_response_headers.complete":
            self._reply.first_byte_ns = now_ns


def _causes(error: BaseException | None) -> list[BaseException]:
    causes = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def _translated(error: httpx.TransportError, reply: Reply) -> httpx.TransportError:
    """The same failure in the words of our own transport. Errors of the set-up (a proxy, a header) stay themselves."""
    said = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError) and any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
        return TlsError(said)
    if isinstance(error, httpx.NetworkError) and not isinstance(error, httpx.ConnectError):
        return httpx.ReadError(said)
    if isinstance(error, httpx.RemoteProtocolError) and reply.status is None and "disconnected" in said:
        return httpx.ReadError("The server closed the connection without an answer.")
    if isinstance(error, httpx.RemoteProtocolError) and "complete message body" in said:
        return Truncated(said)
    return error
