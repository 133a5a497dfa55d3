"""Bytes and stamps → events and stamps, by the WHATWG's rules for event streams.

Reads may end anywhere, inside a character too; only CR, LF and CR LF end a line; a line may have any length.
"""

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A
_NAMES = (b"", b"message", b"error")  # others are the server's private events


class Event(NamedTuple):
    """One event with data. Its stamp and its read are those of the bytes that completed it."""

    stamp_ns: int
    read: int  # events of one read share its number: the time between them is not known
    data: bytes
    terminated: bool = True  # False: the stream ended without the event's blank line


class Reader:
    """Feed it every read in order, then end it."""

    def __init__(self) -> None:
        self._between = True  # two events: nothing of the next one has come
        self._begun = False  # the byte-order mark is dealt with
        self._tail: list[bytes] = []  # of an unfinished line; joined only when the line ends
        self._after_cr = False  # a line feed that comes next belongs to the line end before
        self._name = b""
        self._data: list[bytes] = []
        self._read = -1
        self._stamp_ns = 0

    def feed(self, stamp_ns: int, read: int, piece: bytes) -> list[Event]:
        """The events that these bytes complete. stamp_ns and read are handed on as they are."""
        self._stamp_ns, self._read = stamp_ns, read
        if not self._begun:
            piece = self._without_bom(piece)
        events = self._lines(piece)
        self._between = not (self._tail or self._data or self._name or self._after_cr)
        return events

    def whole(self, piece: bytes) -> bytes | None:
        """The data of a piece that is one whole event, the common case, which costs no bookkeeping; else None, and the
        piece is yet to be fed."""
        if (
            self._between
            and piece[:6] == b"data: "
            and piece.find(b"\n") == len(piece) - 2
            and piece[-1] == _LF
            and b"\r" not in piece
        ):
            self._begun = True
            return piece[6:-2]
        return None

    def _without_bom(self, piece: bytes) -> bytes:
        """The stream's bytes so far without their mark; empty while they may still become one."""
        start = b"".join(self._tail) + piece
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._tail = [start]
            return b""
        self._tail, self._begun = [], True
        return start.removeprefix(_BOM)

    def _lines(self, piece: bytes) -> list[Event]:
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        if not piece:
            return []
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in piece:
            self._tail.append(piece)
            return []
        *lines, rest = (b"".join(self._tail) + piece).split(b"\n") if self._tail else piece.split(b"\n")
        self._tail = [rest] if rest else []
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch(terminated=True)
        field, _, value = line.partition(b":")  # a comment is a field without a name
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        return None

    def _dispatch(self, terminated: bool) -> Event | None:
        name, data = self._name, self._data
        self._name, self._data = b"", []
        payload = data[0] if len(data) == 1 else b"\n".join(data)
        if not payload or name not in _NAMES:
            return None
        return Event(self._stamp_ns, self._read, payload, terminated)

    def end(self) -> Event | None:
        """The last event where its blank line never came. The standard drops it; the caller decides and can tell."""
        if self._tail:
            self._line(b"".join(self._tail))
            self._tail = []
        return self._dispatch(terminated=False)
