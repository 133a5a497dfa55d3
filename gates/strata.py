"""Strata of scored tokens: only by what was known before the token was drawn.

Never by the chunk's size, or by being its last token: in speculative sampling a rejected position draws from the
residual law and not from the model's, so that a lossless server would look lossy there.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from gates.evidence import Pass, Reply
from gates.scored import Ints

Stratum = Literal["profile", "position", "chunk_index", "previous_chunk", "in_flight"]

LEVELS: dict[Stratum, tuple[str, ...]] = {
    "position": ("token 1", "tokens 2 to 16", "tokens 17 to 128", "tokens 129 on"),
    "chunk_index": ("first of a chunk", "second of a chunk", "third of a chunk", "fourth of a chunk", "fifth or later"),
    "previous_chunk": (
        "in the first chunk",
        "after a chunk of 1 token",
        "after a chunk of 2 tokens",
        "after a chunk of 3 or 4 tokens",
        "after a chunk of 5 or more tokens",
    ),
    "in_flight": ("1 in flight", "2 to 4 in flight", "5 to 16 in flight", "17 to 64 in flight", "65 or more in flight"),
}
"""profile is not here: its levels are the profiles."""

_EDGES: dict[Stratum, list[int]] = {
    "position": [1, 16, 128],
    "chunk_index": [1, 2, 3, 4],
    "previous_chunk": [1, 2, 3, 5],
    "in_flight": [2, 5, 17, 65],
}
UNKNOWN = -1


def levels(one: Pass) -> dict[Stratum, Ints]:
    """(n,) of each stratum in LEVELS: index into its levels of each scored token of the pass; UNKNOWN where the wire
    does not tell."""
    places = _places(one)
    stamps = _previous_stamps(one, places)
    told = places.chunk >= 0
    return {
        "position": _binned(one.scored.rows["position"].astype(np.int64), "position"),
        "chunk_index": np.where(told, _binned(places.index, "chunk_index"), UNKNOWN),
        "previous_chunk": np.where(told, _binned(places.previous, "previous_chunk"), UNKNOWN),
        "in_flight": np.where(stamps >= 0, _binned(_in_flight(one.replies, stamps), "in_flight"), UNKNOWN),
    }


def _binned(values: Ints, stratum: Stratum) -> Ints:
    return np.searchsorted(_EDGES[stratum], values, side="right").astype(np.int64)


class _Places:
    """Of each scored token: chunk, the number of its chunk within its reply (−1: unknown); index, its place in it;
    previous, how many tokens the chunk before held (0: there was none)."""

    def __init__(self, chunk: Ints, index: Ints, previous: Ints) -> None:
        self.chunk, self.index, self.previous = chunk, index, previous


def _places(one: Pass) -> _Places:
    """Nothing is known of a pass in which a reply is scored beyond its chunks: the server leaves ends out of the ids.

    In which step an end was drawn is then unknown. Counted to the last chunk, the ends of a server that sends token by
    token would be all that is ever "second of a chunk"; left out alone, they would be chosen by what was drawn.
    """
    n = len(one.scored.rows)
    chunk, index, previous = np.full(n, UNKNOWN, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    position = one.scored.rows["position"].astype(np.int64)
    starts = np.searchsorted(one.scored.reply, np.arange(len(one.replies) + 1))
    for number, reply in enumerate(one.replies):
        part = slice(starts[number], starts[number + 1])
        counts = reply.chunk_tokens
        if counts is None or not len(counts) or starts[number] == starts[number + 1]:
            continue
        ends = np.cumsum(counts)
        if position[part][-1] >= ends[-1]:
            return _Places(np.full(n, UNKNOWN, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))
        within = np.searchsorted(ends, position[part], side="right")
        chunk[part] = within
        index[part] = position[part] - (ends - counts)[within]
        previous[part] = np.where(within > 0, counts[within - 1], 0)
    return _Places(chunk, index, previous)


def _previous_stamps(one: Pass, places: _Places) -> Ints:
    """When the reply's previous chunk came, for its first when the request was sent; −1 where unknown."""
    stamps = np.full(len(places.chunk), UNKNOWN, np.int64)
    starts = np.searchsorted(one.scored.reply, np.arange(len(one.replies) + 1))
    for number, reply in enumerate(one.replies):
        if reply.sent_ns is None or starts[number] == starts[number + 1]:
            continue
        part = slice(starts[number], starts[number + 1])
        before = np.concatenate([np.array([reply.sent_ns], np.int64), reply.chunk_ns])
        known = places.chunk[part] >= 0
        stamps[part] = np.where(known, before[np.maximum(places.chunk[part], 0)], UNKNOWN)
    return stamps


def _in_flight(replies: Sequence[Reply], at_ns: Ints) -> Ints:
    """Requests of this endpoint that were sent and had not ended, at each moment, this one included."""
    sent = np.sort([reply.sent_ns for reply in replies if reply.sent_ns is not None])
    ended = np.sort([reply.end_ns for reply in replies if reply.sent_ns is not None and reply.end_ns is not None])
    return np.searchsorted(sent, at_ns, side="right") - np.searchsorted(ended, at_ns, side="right")
