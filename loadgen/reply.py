"""One answer as it arrives: head, body pieces with the stamps of their reads, and how it ended.

Both transports fill it. It is kept whole, so that nothing wakes a task between the first byte and the last.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx

Clock = Callable[[], int]
"""Nanoseconds of a monotonic clock."""


class Truncated(httpx.RemoteProtocolError):
    """The connection ended in good order, but before the answer did."""


class Reply(httpx.AsyncByteStream):
    """The answer to one request, under `extensions["reply"]` of the request, also where the request failed.

    `reads` has one entry for each read from the socket that held body bytes: its stamp, and the body's bytes without
    their chunked coding, but with any content coding.
    """

    def __init__(self) -> None:
        self.connect_ns: int | None = None  # spent opening a connection; None where one was open
        self.sent_ns: int | None = None  # the last byte handed to the socket
        self.first_byte_ns: int | None = None  # of the head that counts, not of an interim one
        self.end_ns: int | None = None
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.reads: list[tuple[int, bytes]] = []
        self.whole = False  # the body came to its end
        self._error: httpx.TransportError | None = None
        self._ended = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> bool:
        return self._ended.done()

    def end(self, stamp_ns: int, error: httpx.TransportError | None = None) -> None:
        """The first end counts; without an error the reply is whole."""
        if not self._ended.done():
            self.end_ns, self._error, self.whole = stamp_ns, error, error is None
            self._ended.set_result(None)

    async def wait(self) -> None:
        """Until the end. Raises the httpx error that ended it."""
        await self._ended
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle, and no garbage is collected while a pass runs

    async def ended_or(self, other: "asyncio.Future[None]") -> None:
        await asyncio.wait([self._ended, other], return_when=asyncio.FIRST_COMPLETED)

    @property
    def begun(self) -> bool:
        """Whether any byte of an answer came."""
        return self.first_byte_ns is not None

    def restart(self) -> None:
        """Forgets its end: the request goes out once more, over a fresh connection."""
        self.sent_ns = self.end_ns = self._error = None
        self._ended = asyncio.get_running_loop().create_future()

    def header(self, name: bytes) -> bytes | None:
        """The last value of a header; its name in lower case."""
        return next((value for key, value in reversed(self.headers) if key.lower() == name), None)

    def response(self) -> httpx.Response:
        assert self.status is not None, "a whole reply has a head"
        return httpx.Response(self.status, headers=self.headers, stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self.wait()
        for _, piece in self.reads:
            yield piece
