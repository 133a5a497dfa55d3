"""One HTTP/1.1 connection: the bytes of an answer, stamped by the kernel where it can, else when they are read.

Kernel stamps stay right while this process is busy, except that segments read together share the last one's.
"""

import asyncio
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from typing import Any

import httptools
import httpx

from loadgen.reply import Clock, Reply, Truncated

_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)  # Python names it from 3.13 on; Linux on x86 and ARM has 35
_TIMESPEC = struct.Struct("@qq").unpack
_ANCILLARY_BYTES = 64  # one control message with a timespec needs 32
_READ_BYTES = 64 << 10


class Answer:
    """Parses one answer into its Reply; the methods named on_… are called by httptools."""

    __slots__ = ("_feed", "_fresh", "_interim", "_parser", "_reads", "_reply", "_stamp_ns", "reusable")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._reads = reply.reads
        self._parser: Any = httptools.HttpResponseParser(self)
        self._feed: Any = self._parser.feed_data
        self._stamp_ns = 0
        self._fresh = False  # no body of this read was kept yet
        self._interim = False
        self.reusable = False  # the connection may carry another request

    def feed(self, stamp_ns: int, data: memoryview) -> None:
        self._stamp_ns, self._fresh = stamp_ns, True
        try:
            self._feed(data)
        except httptools.HttpParserUpgrade:
            self.reusable = False  # status 101, which nobody asked for
        except httptools.HttpParserError as error:
            self.reusable = False
            self._reply.end(stamp_ns, httpx.RemoteProtocolError(f"The answer is no HTTP/1 ({error})."))

    def on_message_begin(self) -> None:
        if self._reply.ended:
            self.reusable = False  # bytes behind the answer belong to no request of ours
        else:
            self._reply.first_byte_ns = self._stamp_ns

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._reply.ended:
            self._reply.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if not self._reply.ended:
            self._reply.status = self._parser.get_status_code()
            self._interim = 100 <= self._reply.status < 200 and self._reply.status != 101

    def on_body(self, body: bytes) -> None:
        if self._fresh:
            self._fresh = False
            self._reads.append((self._stamp_ns, body))
        else:
            self._reads[-1] = (self._stamp_ns, self._reads[-1][1] + body)

    def on_message_complete(self) -> None:
        if self._interim:
            self._reply.headers.clear()
            self._reply.status = None
        elif not self._reply.ended:
            self.reusable = self._parser.should_keep_alive()
            self._reply.end(self._stamp_ns)

    def release(self) -> None:
        """Parser and callbacks hold each other, and no garbage is collected while a pass runs."""
        self._parser = self._feed = None

    def lost(self, stamp_ns: int, error: OSError | None) -> None:
        """The connection is gone; without an error it was closed in good order."""
        if error is not None:
            self._reply.end(stamp_ns, httpx.ReadError(f"The connection broke: {error}."))
        elif self._reply.status is None or self._interim:
            self._reply.end(stamp_ns, httpx.ReadError("The server closed the connection without an answer."))
        elif self._ends_with_connection():
            self._reply.end(stamp_ns)
        else:
            self._reply.end(stamp_ns, Truncated("The connection was closed before the body's end."))

    def _ends_with_connection(self) -> bool:
        return self._reply.header(b"content-length") is None and self._reply.header(b"transfer-encoding") is None


class Connection(ABC):
    """An open connection that carries one exchange after another."""

    def __init__(self, clock: Clock) -> None:
        self.closed = False
        self._clock = clock
        self._answer: Answer | None = None

    async def exchange(self, wire: bytes, reply: Reply) -> None:
        """Sends a request and returns when its answer is whole. Raises the httpx error that ended it."""
        self._answer = answer = Answer(reply)
        try:
            await self._send(wire, reply)
            await reply.wait()
        except BaseException:  # cancelled too: an answer is still under way, and nothing else may be sent here
            self.close()
            raise
        finally:
            self._answer = None
            answer.release()
        if reply.sent_ns is None or not answer.reusable:
            self.close()

    def _received(self, stamp_ns: int, data: memoryview) -> None:
        if self._answer is None:
            self.close()  # what nobody asked for would be taken for the next answer
        else:
            self._answer.feed(stamp_ns, data)

    def _lost(self, error: OSError | None) -> None:
        if self._answer is not None:
            self._answer.lost(self._clock(), error)
        self.close()

    @abstractmethod
    async def _send(self, wire: bytes, reply: Reply) -> None:
        """Hands all bytes to the socket and stamps the last. A broken connection is told by the reading side."""

    @abstractmethod
    def close(self) -> None: ...


class Offset:
    """From CLOCK_REALTIME, which the kernel's stamps are of, to our clock. One object, shared and taken anew."""

    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns


class SocketConnection(Connection):
    """A plain socket, read with the kernel's arrival stamps."""

    def __init__(self, sock: socket.socket, clock: Clock, offset: Offset) -> None:
        super().__init__(clock)
        self._sock = sock
        self._offset = offset
        self._receive = sock.recvmsg_into
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)
        self._writable: asyncio.Future[None] | None = None

    def _readable(self) -> None:
        """One read. What it costs is the client's own limit: everything it needs is at hand."""
        try:
            count, ancillary, _, _ = self._receive(_BUFFERS, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        if count == 0:
            self._lost(None)
        elif ancillary:
            seconds, nanoseconds = _TIMESPEC(ancillary[0][2])
            self._received(seconds * 1_000_000_000 + nanoseconds + self._offset.ns, _VIEW[:count])
        else:
            # A packet from before stamping was on: the read's own moment must do.
            self._received(self._clock(), _VIEW[:count])

    async def _send(self, wire: bytes, reply: Reply) -> None:
        unsent = memoryview(wire)
        while not reply.ended:
            # Stamped before the call that hands over the last byte: on one machine the answer can overtake its return.
            stamp_ns = self._clock()
            try:
                unsent = unsent[self._sock.send(unsent) :]
            except (BlockingIOError, InterruptedError):
                await self._until_writable(reply)
            except OSError:
                return
            if not unsent:
                reply.sent_ns = stamp_ns
                return

    async def _until_writable(self, reply: Reply) -> None:
        self._writable = self._loop.create_future()
        self._loop.add_writer(self._sock, self._set_writable)
        try:
            await reply.ended_or(self._writable)
        finally:
            if not self.closed:
                self._loop.remove_writer(self._sock)

    def _set_writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()
            self._set_writable()


# All reads are synchronous on one thread, and httptools copies what it hands on: one buffer serves every connection.
_VIEW = memoryview(bytearray(_READ_BYTES))
_BUFFERS = [_VIEW]


class StreamConnection(Connection, asyncio.BufferedProtocol):
    """The event loop's own transport, stamped when read: for TLS, and where the kernel gives no stamps."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._resumed: asyncio.Future[None] | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=0)  # so that a pause means: not all is handed over

    def get_buffer(self, sizehint: int) -> memoryview:
        return _VIEW

    def buffer_updated(self, nbytes: int) -> None:
        self._received(self._clock(), _VIEW[:nbytes])

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(error if isinstance(error, OSError) else None)

    def pause_writing(self) -> None:
        self._resumed = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._resumed = None

    async def _send(self, wire: bytes, reply: Reply) -> None:
        stamp_ns = self._clock()
        self._transport.write(wire)
        if self._resumed is not None:
            await reply.ended_or(self._resumed)
            stamp_ns = self._clock()
        reply.sent_ns = stamp_ns

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._transport.abort()  # no farewell: an answer that is cut off must not keep the server busy


def enable_stamps(sock: socket.socket) -> None:
    """Asks the kernel for arrival stamps. Raises OSError where it has none."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


async def connect_socket(host: str, port: int) -> socket.socket:
    """A non-blocking, stamping socket, connected to the first address that answers. Raises OSError."""
    loop = asyncio.get_running_loop()
    failed: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_stamps(sock)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:  # cancelled too: nobody else knows this socket
            sock.close()
            raise
        else:
            return sock
    raise failed


async def connect_stream(host: str, port: int, tls: ssl.SSLContext | None, clock: Clock) -> StreamConnection:
    """Raises OSError, ssl.SSLError among them."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: StreamConnection(clock), host, port, ssl=tls)
    return connection
