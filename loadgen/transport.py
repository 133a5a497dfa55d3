"""httpx's transport for timed traffic: stamps at the socket, and nothing else between two reads.

HTTP/1.1 only, no proxies, no redirects; a connection is kept for the next request to its origin.
"""

import asyncio
import socket
import ssl
import sys
import time
import weakref
from typing import Literal

import httpx

from loadgen import headroom
from loadgen.connection import Connection, Offset, SocketConnection, connect_socket, connect_stream, enable_stamps
from loadgen.reply import Clock, Reply

Origin = tuple[str, str, int]  # scheme, host, port

_OPENED_AT_ONCE = 64  # servers accept from a queue of bounded length
_DEFAULT_PORTS = {"http": 80, "https": 443}


class TlsError(httpx.ConnectError):
    """The handshake failed: a certificate, a protocol version, or no TLS at all."""


class SocketTransport(httpx.AsyncBaseTransport):
    """Sends a request and returns when its answer is whole: nothing wakes a task between the bytes of an answer.

    The Reply with all stamps is put under `extensions["reply"]` of the request before anything is sent, so that a
    failed request has what came of its answer. Request bytes made before the clock starts (`encode`) are taken from
    `extensions["wire"]`. Of httpx's timeouts, connect is kept as it is, and read limits the whole answer.
    """

    def __init__(
        self,
        verify: ssl.SSLContext | bool = True,
        clock: Clock = time.monotonic_ns,
        kernel_stamps: bool = True,
    ) -> None:
        self._verify = verify
        self._clock = clock
        self._idle: dict[Origin, list[Connection]] = {}
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()  # the loop holds the open ones
        self._sentinel = _stamping_socket() if kernel_stamps else None
        self._tls_used = False
        self._offset = Offset(_realtime_offset_ns(clock))

    @property
    def stamps(self) -> Literal["kernel", "read"]:
        """Whose moment an arrival is: the kernel's of the packet, or ours of the read."""
        return "read" if self._sentinel is None or self._tls_used else "kernel"

    def sync(self) -> int:
        """Takes the distance between the kernel's clock and ours anew; returns by how many nanoseconds it moved."""
        before, self._offset.ns = self._offset.ns, _realtime_offset_ns(self._clock)
        return abs(self._offset.ns - before)

    async def open(self, url: httpx.URL, connections: int, limit_s: float | None = None) -> None:
        """Has so many connections to the URL's origin idle and open, each within the limit.

        Raises httpx.ConnectError or httpx.ConnectTimeout, and NoRoom where this machine's limits forbid it.
        """
        origin = _origin(url)
        idle = self._idle.setdefault(origin, [])
        idle[:] = [connection for connection in idle if not connection.closed]
        headroom.check_descriptors(max(0, connections - len(idle)))
        headroom.check_ports(connections)
        while (missing := min(connections - len(idle), _OPENED_AT_ONCE)) > 0:
            idle += await asyncio.gather(*(self._connect_within(origin, limit_s) for _ in range(missing)))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        reply: Reply = request.extensions.setdefault("reply", Reply())
        wire = request.extensions.get("wire") or encode(request)
        limits = request.extensions.get("timeout", {})
        try:
            async with asyncio.timeout(limits.get("read")):
                await self._exchange(_origin(request.url), wire, reply, limits.get("connect"))
        except TimeoutError:
            raise httpx.ReadTimeout(f"No whole answer within {limits['read']} s.") from None
        return reply.response()

    async def _exchange(self, origin: Origin, wire: bytes, reply: Reply, connect_s: float | None) -> None:
        connection = self._take_idle(origin)
        if connection is not None:
            try:
                await connection.exchange(wire, reply)
            except httpx.ReadError:
                if reply.begun:
                    raise
                # The server gave up the kept connection while our request was on its way: that says nothing of it.
                reply.restart()
                connection = None
        if connection is None:
            began_ns = self._clock()
            connection = await self._connect_within(origin, connect_s)
            reply.connect_ns = self._clock() - began_ns
            await connection.exchange(wire, reply)
        self._keep(origin, connection)

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        return None

    def _keep(self, origin: Origin, connection: Connection) -> None:
        if not connection.closed:
            self._idle.setdefault(origin, []).append(connection)

    async def _connect_within(self, origin: Origin, limit_s: float | None) -> Connection:
        try:
            async with asyncio.timeout(limit_s):
                return await self._connect(origin)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"No connection to {origin[1]}:{origin[2]} within {limit_s} s.") from None

    async def _connect(self, origin: Origin) -> Connection:
        scheme, host, port = origin
        connection: Connection
        try:
            if scheme == "http" and self._sentinel is not None:
                sock = await connect_socket(host, port)
                connection = SocketConnection(sock, self._clock, self._offset)
            else:
                self._tls_used |= scheme == "https"
                tls = self._tls() if scheme == "https" else None
                connection = await connect_stream(host, port, tls, self._clock)
        except ssl.SSLError as error:
            raise TlsError(f"TLS with {host}:{port} failed: {error}") from error
        except OSError as error:
            if (ours := headroom.refused_here(error)) is not None:
                raise ours from error
            raise httpx.ConnectError(f"No connection to {host}:{port}: {error}") from error
        self._all.add(connection)
        return connection

    def _tls(self) -> ssl.SSLContext:
        if isinstance(self._verify, bool):
            self._verify = httpx.create_ssl_context(verify=self._verify)
        return self._verify

    async def aclose(self) -> None:
        for connection in list(self._all):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop's own transports close a turn later
        if self._sentinel is not None:
            self._sentinel.close()


def encode(request: httpx.Request) -> bytes:
    """The request as it goes over the wire. Raises httpx.LocalProtocolError where a header would break the framing."""
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in request.headers.raw]
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise httpx.LocalProtocolError("A header holds a line end: it would begin another header.")
    return b"\r\n".join([*lines, b"", request.content])


def _origin(url: httpx.URL) -> Origin:
    if url.scheme not in _DEFAULT_PORTS:
        raise httpx.UnsupportedProtocol(f"{url} is neither http:// nor https://.")
    return url.scheme, url.host, url.port or _DEFAULT_PORTS[url.scheme]


def _stamping_socket() -> socket.socket | None:
    """A socket that keeps the kernel stamping packets from now on: the first ones after the switch come without.

    None where the kernel gives no stamps.
    """
    if sys.platform != "linux":
        return None
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        enable_stamps(sock)
    except OSError:
        sock.close()
        return None
    return sock


def _realtime_offset_ns(clock: Clock) -> int:
    """From CLOCK_REALTIME to the clock: of five tries, that in which the two were read closest together."""

    def reading() -> tuple[int, int]:
        before = clock()
        realtime = time.time_ns()
        after = clock()
        return after - before, (before + after) // 2 - realtime

    return min(reading() for _ in range(5))[1]
