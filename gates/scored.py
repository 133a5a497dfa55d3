"""Joins the reference's scores of one pass with the replies they belong to; says what was left out and why."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.record import SCORE_DTYPE

Rows = np.ndarray[Any, np.dtype[np.void]]
Ints = npt.NDArray[np.int64]

LEAST_LOGPROB = -700.0
"""Of a chance that is more than nothing in double precision."""

NO_IDS = "no token ids came back"
NO_FILE = "the pass was not scored"
NO_SCORES = "the reference scored none of its tokens"
IN_PART = "the reference scored only a part of its tokens"
NOT_BACK = "their text is empty, cut off, or does not lead back to tokens that may be the ones drawn"
OTHER_TOKENS = "the scores are of other tokens than the reply's"


@dataclass(frozen=True, slots=True)
class Scored:
    """rows: (n,) of SCORE_DTYPE in the order of the replies; reply: (n,) each row's reply, never falling;
    dropped: reason → how many replies."""

    rows: Rows
    reply: Ints
    dropped: dict[str, int]


def join(
    requests: npt.NDArray[np.uint64], expected: list[Ints | None], received: list[bool], scores: Rows | None
) -> Scored:
    """requests: each reply's score key, in the order wanted; expected: its token ids, None where only text came back;
    received: whether anything came. Every token received counts, whatever its reply's end."""
    if scores is None:
        none = np.empty(0, np.int64)
        return Scored(
            np.empty(0, SCORE_DTYPE), none, _dropped(expected, received, np.zeros(len(requests), int), NO_FILE)
        )
    owner = _owners(requests, scores["request"])
    other = _of_other_tokens(scores, owner, expected)
    rows, reply = _ordered(scores, owner, _usable(scores) & (owner >= 0) & ~other)
    mismatched = np.unique(owner[other])
    counts = np.bincount(reply, minlength=len(requests))
    counts[mismatched] = np.maximum(counts[mismatched], 1 << 40)  # counted below, under their own reason
    dropped = _dropped(expected, received, counts, NO_SCORES)
    return Scored(rows, reply, dropped | ({OTHER_TOKENS: len(mismatched)} if len(mismatched) else {}))


def join_by_text(requests: npt.NDArray[np.uint64], received: list[bool], scores: Rows | None) -> Scored:
    """As `join`, of replies whose tokens were made from their text: which ids came back, if any, does not matter."""
    found = join(requests, [None] * len(requests), received, scores)
    dropped = {NOT_BACK if why == NO_IDS and scores is not None else why: n for why, n in found.dropped.items()}
    return dataclasses.replace(found, dropped=dropped)


def _usable(scores: Rows) -> npt.NDArray[np.bool_]:
    """Positions with alternatives (the others were null in the answer).

    Never by the token's own log-probability: dropping by what was drawn biases what is left.
    """
    return np.asarray((scores["ids"][:, 0] >= 0) & (scores["logprobs"] > LEAST_LOGPROB).any(axis=1), np.bool_)


def _ordered(scores: Rows, owner: Ints, kept: npt.NDArray[np.bool_]) -> tuple[Rows, Ints]:
    order = np.flatnonzero(kept)
    place = owner[order] * (1 << 32) + scores["position"][order]
    if (np.diff(place) >= 0).all():
        # Mostly so, and then the array as read is used: no copy of 180 bytes a token.
        return (scores, owner) if len(order) == len(scores) else (scores[order], owner[order])
    order = order[np.argsort(place, kind="stable")]
    return scores[order], owner[order]


def _dropped(expected: list[Ints | None], received: list[bool], counts: Ints, why: str) -> dict[str, int]:
    """Replies that brought tokens and give fewer scored ones, by reason."""
    reasons: Counter[str] = Counter()
    for ids, came, count in zip(expected, received, counts.tolist(), strict=True):
        if count == 0 and ids is None and came:
            reasons[NO_IDS] += 1
        elif ids is not None and count < len(ids):
            reasons[IN_PART if count else why] += 1
    return dict(reasons)


def _owners(requests: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64]) -> Ints:
    """Index of each row's reply; −1 for rows of requests that were not timed."""
    order = np.argsort(requests)
    owner = order[np.minimum(np.searchsorted(requests[order], keys), len(requests) - 1)]
    return np.where(requests[owner] == keys, owner, -1).astype(np.int64)


def _of_other_tokens(scores: Rows, owner: Ints, expected: list[Ints | None]) -> npt.NDArray[np.bool_]:
    """Rows whose token is not the one that the reply has at this place. One more at the end is an appended EOS."""
    lengths = np.array([0 if ids is None else len(ids) for ids in expected], np.int64)
    known = np.array([ids is not None for ids in expected], np.bool_)
    starts = np.cumsum(lengths) - lengths
    tokens = np.concatenate([np.empty(0, np.int64), *(ids for ids in expected if ids is not None), np.full(1, -1)])
    position = scores["position"].astype(np.int64)
    inside = (position >= 0) & (position < lengths[owner])
    at = np.where(inside, starts[owner] + position, len(tokens) - 1)
    right = np.where(inside, tokens[at] == scores["token_id"], position == lengths[owner])
    return np.asarray((owner >= 0) & known[owner] & ~right, np.bool_)
