"""A streamed answer, read event by event: what the server said, and which of its events carried tokens.

One rule counts tokens: the ids, else the usage that runs along with them; never the chunks.
"""

import io
import zlib
from collections.abc import Callable
from typing import Any

import orjson

from loadgen.dialects import Dialect, Reading, ServerError
from loadgen.record import Logprob, Usage
from loadgen.reply import Reply
from loadgen.sse import Reader

_SHORT = 16  # bytes; [DONE] with any spaces a server may put around it
_BEYOND_IDS = 4  # fields of a Reading that nearly every event leaves as they are, but for its having a choice
_PLAIN = Reading(choice=True)[_BEYOND_IDS:]
_ODD_SHAPES = (TypeError, ValueError, AttributeError, LookupError)  # what reading a body of another shape raises


class Transcript:
    """Follows a Reply: `follow` as often as one likes, `finish` once at its end.

    chunk_ns, chunk_tokens and chunk_read have one entry for every event that carried tokens of any channel.
    echo: the prompt's text, where the server was asked to send it before the reply: it is no part of `text`.
    """

    def __init__(self, dialect: Dialect, echo: str | None = None) -> None:
        self.chunk_ns: list[int] = []
        self.chunk_tokens: list[int | None] = []
        self.chunk_read: list[int] = []
        self.token_ids: list[int] | None = None
        self.prompt_token_ids: list[int] | None = None
        self.tool_calls: list[dict[str, Any]] | None = None
        self.logprobs: list[Logprob] | None = None
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.speculation: dict[str, Any] | None = None
        self.error: ServerError | None = None
        self.malformed: str | None = None  # the first event that could not be read, and why
        self.done_ns: int | None = None  # of [DONE]
        self.last_event_ns: int | None = None
        self.cut_last_event = False  # the last event counted, though its blank line never came
        self.ids_missing = False  # an event brought text without ids
        self._text, self._reasoning = io.StringIO(), io.StringIO()
        self._read_event = dialect.reader()
        self._echo = echo or ""  # what of it is still to come
        self._events = Reader()
        self._decode: Callable[[bytes], bytes] | None = None
        self._followed = 0
        self._running: bool | None = None  # usage grows with the text; None: no text came yet
        self._counted = 0

    @property
    def text(self) -> str:
        return self._text.getvalue()

    @property
    def reasoning(self) -> str:
        return self._reasoning.getvalue()

    @property
    def complete(self) -> bool:
        """The server said all it had to say, whatever became of the connection."""
        return self.done_ns is not None and self.finish_reason is not None

    @property
    def completion_tokens(self) -> int | None:
        """By the ids, else by the usage; None where the wire does not tell."""
        if self.token_ids is not None and not self.ids_missing:
            return len(self.token_ids)
        return self.usage.completion_tokens if self.usage else None

    def follow(self, reply: Reply, most: int | None = None, release: bool = False) -> bool:
        """Reads what has come since the last time, at most so many reads; True where it left some.

        release: lets go of the bytes that are read.
        """
        reads = reply.reads
        if self._followed == 0 and reads:
            self._decode = decoder(reply.header(b"content-encoding"))
        end = len(reads) if most is None else min(len(reads), self._followed + most)
        whole, take = self._events.whole, self._take
        for index in range(self._followed, end):
            stamp_ns, piece = reads[index]
            if self._decode is not None:
                piece = self._decoded(self._decode, piece)
            if data := whole(piece):
                take(stamp_ns, index, data, True)
            else:
                for event in self._events.feed(stamp_ns, index, piece):
                    take(*event)
            if release:
                reads[index] = (stamp_ns, b"")
        self._followed = end
        return end < len(reads)

    def finish(self, reply: Reply) -> None:
        self.follow(reply)
        last = self._events.end()
        if last is not None:
            self._take(*last)
        if not _are_token_ids(self.token_ids):
            self.token_ids, self.malformed = None, self.malformed or "token ids that are no token ids"
        if not _are_token_ids(self.prompt_token_ids):
            self.prompt_token_ids, self.malformed = None, self.malformed or "prompt token ids that are no token ids"

    def _decoded(self, decode: Callable[[bytes], bytes], piece: bytes) -> bytes:
        try:
            return decode(piece)
        except zlib.error as error:
            self.malformed = self.malformed or f"a compressed body that cannot be read ({error})"
            self._decode = _nothing
            return b""

    def _take(self, stamp_ns: int, read: int, data: bytes, terminated: bool) -> None:
        if self.done_ns is not None:
            return
        self.last_event_ns = stamp_ns
        if len(data) < _SHORT and data.strip() == b"[DONE]":
            self.done_ns = stamp_ns
            return
        try:
            reading = self._read_event(orjson.loads(data))
            if reading[_BEYOND_IDS:] != _PLAIN or not self._add_plain(stamp_ns, read, reading):
                self._add(stamp_ns, read, reading)
        except _ODD_SHAPES as error:
            if terminated:  # what a cut connection left of an event is no fault of its own
                self.malformed = self.malformed or f"an event that cannot be read ({error}): {data[:80]!r}"
        else:
            self.cut_last_event |= not terminated

    def _add_plain(self, stamp_ns: int, read: int, reading: Reading) -> bool:
        """Nearly every event: text and its ids behind others of their kind. False: it is not that plain."""
        text, ids = reading.text, reading.token_ids
        if not text or not ids or reading.reasoning or reading.tool_calls:
            return False
        if self._echo or self.token_ids is None or self._running is None:
            return False
        self._text.write(text)
        self.token_ids += ids
        self.chunk_ns.append(stamp_ns)
        self.chunk_read.append(read)
        self.chunk_tokens.append(len(ids))
        return True

    def _add(self, stamp_ns: int, read: int, reading: Reading) -> None:
        if reading.finish_reason is not None and not isinstance(reading.finish_reason, str):
            raise TypeError("finish_reason is no text")  # read back, it would make the whole run unreadable
        if self._echo and reading.text:
            reading = self._without_echo(reading)
        if reading.kept is not None:
            self._text.truncate(self._text.seek(reading.kept))
        tokens = self._tokens(reading)
        if reading.carries_tokens or (reading.choice and tokens):
            self.chunk_ns.append(stamp_ns)
            self.chunk_read.append(read)
            self.chunk_tokens.append(tokens)
            self._add_tokens(reading)
        if reading.logprobs:
            self.logprobs = (self.logprobs or []) + reading.logprobs
        self.finish_reason = reading.finish_reason or self.finish_reason
        self.prompt_token_ids = self.prompt_token_ids or reading.prompt_token_ids
        if reading.reply_ids is not None:
            self.token_ids, self.ids_missing = reading.reply_ids, False
        if reading.last:
            self.done_ns = stamp_ns
        self.speculation = reading.speculation or self.speculation
        self.error = self.error or reading.error
        if reading.usage and (reading.usage.prompt_tokens or reading.usage.completion_tokens):
            self.usage = reading.usage  # the last that is not all zero: some servers fill every chunk with zeros

    def _without_echo(self, reading: Reading) -> Reading:
        """The prompt comes in one piece, with the first token or without, or in several; or not at all."""
        text, echo = reading.text, self._echo
        if text.startswith(echo):
            self._echo, text = "", text[len(echo) :]
        elif echo.startswith(text):
            self._echo, text = echo[len(text) :], ""
        else:
            self._echo = ""
            return reading
        # The prompt's log-probabilities stand before those of the reply; how many those are, only ids can tell.
        own = (reading.logprobs or [])[-len(reading.token_ids) :] if reading.token_ids else None
        return reading._replace(text=text, logprobs=own)

    def _tokens(self, reading: Reading) -> int | None:
        """Tokens of one event. Usage counts them only where the first text came with a count above zero."""
        total = reading.usage.completion_tokens if reading.usage and reading.choice else None
        if self._running is None and reading.carries_tokens:
            self._running = bool(total)
        grown = None
        if self._running and total is not None:
            grown, self._counted = total - self._counted, total
        if reading.token_ids is not None:
            return len(reading.token_ids)
        return grown if grown is not None and grown >= 0 else None

    def _add_tokens(self, reading: Reading) -> None:
        if reading.text:
            self._text.write(reading.text)
        if reading.reasoning:
            self._reasoning.write(reading.reasoning)
        if reading.tool_calls:
            self.tool_calls = _merged(self.tool_calls or [], reading.tool_calls)
        if reading.token_ids is None:
            self.ids_missing = True
        elif self.token_ids is None:
            self.token_ids = list(reading.token_ids)
        else:
            self.token_ids += reading.token_ids


def _are_token_ids(ids: Any) -> bool:
    """Numbers from 0 up that fit the scores' i4; None is fine. What else a server sends must not reach the disk."""
    return ids is None or (
        isinstance(ids, list) and all(type(token_id) is int and 0 <= token_id < 1 << 31 for token_id in ids)
    )


def decoder(encoding: bytes | None) -> Callable[[bytes], bytes] | None:
    """One decoder for a whole body, fed as it comes: a new one per piece would lose all but the first. None: not coded.

    Of the codings only gzip and deflate are known; under another name the bytes raise zlib.error.
    """
    if encoding is None or encoding.lower() == b"identity":
        return None
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress  # gzip or zlib, by its own header


def _nothing(piece: bytes) -> bytes:
    return b""


def _merged(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls come in pieces that share an index; the arguments' pieces are joined."""
    for delta in deltas:
        index = delta.get("index", len(calls))
        known = next((call for call in calls if call.get("index") == index), None)
        if known is None:
            calls.append({**delta, "index": index, "function": dict(delta.get("function") or {})})
            continue
        function = delta.get("function") or {}
        joined = (known["function"].get("arguments") or "") + (function.get("arguments") or "")
        known["function"] |= {key: value for key, value in function.items() if value is not None}
        known["function"]["arguments"] = joined
    return calls
