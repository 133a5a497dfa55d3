"""Martingale residuals of emitted tokens under the reference, coarsened to its k likeliest and `other`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates.scored import LEAST_LOGPROB, Ints, Rows, Scored

Floats = npt.NDArray[np.float64]

BLOCK = 1 << 14
"""Tokens worked on at once: 2.5 MB an array of k = 20, so that a million tokens never stand in memory as float64."""

NUCLEUS, COVERED = 0.985, 0.98
"""The tail is what lies beyond the first; a position counts where the listed cells hold at least the second."""

UNKNOWN = 1e-6
"""The least chance of a token that is not listed: float32 log-probabilities do not sum more exactly."""

TIED_NAT = 1e-6
"""bf16 logits tie at the top in 2 % of positions; float32 log-probabilities of a tie differ by less than this."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The outcome space of n positions, ordered by the reference alone: log-probability falling, then token id rising.

    logp, p: (n, k), −inf and 0 beyond what the reference gave. other: (n,) mass of everything else, never negative.
    cell: (n,) where the token fell; k for `other`, which it is exactly when its id is not listed.
    ids: (n, k), −1 beyond what was given.
    """

    logp: Floats
    p: Floats
    other: Floats
    cell: Ints
    ids: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Residuals:
    """One statistic over n tokens: d = g(cell) − Σ p g, v = Σ p g² − (Σ p g)², reply = index of each token's reply."""

    d: Floats
    v: Floats
    reply: Ints

    def first(self, n: int) -> "Residuals":
        return Residuals(self.d[:n], self.v[:n], self.reply[:n])

    def __len__(self) -> int:
        return len(self.d)


Statistic = Callable[[Cells], tuple[Floats, Floats]]
"""(d, v) of every position of a block."""


Shaped = Callable[[Cells, Floats], Cells]
"""(cells under the reference's own law, log p of the drawn tokens) → cells under the law that was sampled from."""


def cells(rows: Rows) -> Cells:
    """rows: (n,) of SCORE_DTYPE, each with at least one log-probability over LEAST_LOGPROB."""
    ids, logp = rows["ids"], rows["logprobs"].astype(np.float64)
    logp[(ids < 0) | ~(logp > LEAST_LOGPROB)] = -np.inf  # listed with no chance at all is as good as not listed
    ids, logp = _sorted(ids, logp)
    p = np.exp(logp)
    listed = (ids == rows["token_id"][:, None]) & (p > 0)
    cell = np.where(listed.any(axis=1), listed.argmax(axis=1), ids.shape[1])
    return Cells(logp, p, np.maximum(1 - p.sum(axis=1), 0), cell, ids)


def _sorted(ids: npt.NDArray[np.int32], logp: Floats) -> tuple[npt.NDArray[np.int32], Floats]:
    """Rows in order stay as they are; the others are sorted: a server's own order lets the outcome decide ties."""
    left, right = logp[:, :-1], logp[:, 1:]
    wrong = np.flatnonzero(
        ((left < right) | ((left == right) & (ids[:, :-1] > ids[:, 1:]) & (right > -np.inf))).any(axis=1)
    )
    if len(wrong):
        order = np.lexsort((ids[wrong], -logp[wrong]), axis=1)
        ids = ids.copy()
        ids[wrong] = np.take_along_axis(ids[wrong], order, axis=1)
        logp[wrong] = np.take_along_axis(logp[wrong], order, axis=1)
    return ids, logp


def likelihood(block: Cells) -> tuple[Floats, Floats]:
    """g = log p of the cell, for `other` that of the last cell: the score test for temperature, in nat."""
    given = block.logp > -np.inf
    last = np.where(given, block.logp, np.inf).min(axis=1)
    g = np.where(given, block.logp, last[:, None])
    return _moments(block, g, last)


def _moments(block: Cells, g: Floats, g_other: Floats) -> tuple[Floats, Floats]:
    weighted = block.p * g
    mean = weighted.sum(axis=1) + block.other * g_other
    square = np.einsum("nk,nk->n", weighted, g) + block.other * g_other**2
    k = g.shape[1]
    inside = block.cell < k
    drawn = np.where(inside, g[np.arange(len(g)), np.minimum(block.cell, k - 1)], g_other)
    return drawn - mean, np.maximum(square - mean**2, 0)


def first_choice(block: Cells) -> tuple[Floats, Floats]:
    """1 where the token is of the tied set of likeliest tokens, minus that set's mass: a share of tokens."""
    hit, mass = _top(block)
    return hit - mass, mass * (1 - mass)


def first_choice_weighted(block: Cells) -> tuple[Floats, Floats]:
    """first_choice divided by the set's mass: the score test for a mixture with greedy decoding."""
    hit, mass = _top(block)
    return (hit - mass) / mass, (1 - mass) / mass


def _top(block: Cells) -> tuple[Floats, Floats]:
    tied = block.logp >= block.logp[:, :1] - TIED_NAT
    mass = np.minimum(np.where(tied, block.p, 0).sum(axis=1), 1)
    # The set is the first cells of the order, so the token is of it when its cell comes before their number.
    return (block.cell < tied.sum(axis=1)).astype(np.float64), mass


def tail(block: Cells) -> tuple[Floats, Floats]:
    """1 where the token lies outside the nucleus of mass NUCLEUS, minus what lies there; 0 at positions whose cells
    hold too little to tell."""
    before = np.cumsum(block.p, axis=1) - block.p
    inside = (before < NUCLEUS) & (block.p > 0)
    told = 1 - block.other >= COVERED
    mass = np.where(told, np.clip(1 - np.where(inside, block.p, 0).sum(axis=1), 0, 1), 0)
    hit = told & (block.cell >= inside.sum(axis=1))
    return hit - mass, mass * (1 - mass)


def junk(block: Cells) -> tuple[Floats, Floats]:
    """1 where the token is none of the likeliest k, minus what they leave over: corruption, or truncation to fewer."""
    mass = np.maximum(block.other, UNKNOWN)
    return (block.cell == block.p.shape[1]) - mass, mass * (1 - mass)


ARBITRARY = 1e-3
"""The share of arbitrary tokens that junk_weighted is the best score against."""


def junk_weighted(block: Cells) -> tuple[Floats, Floats]:
    """g = log of the likelihood ratio of a mixture with arbitrary tokens: one where the reference is sure of a listed
    token says much, one where much is left over says little. In nat."""
    mass = np.maximum(block.other, UNKNOWN)
    of_listed, of_other = np.log1p(-ARBITRARY), np.log(1 - ARBITRARY + ARBITRARY / mass)
    off = of_other - of_listed
    return off * ((block.cell == block.p.shape[1]) - mass), off**2 * mass * (1 - mass)


def eos(ids: frozenset[int]) -> Statistic:
    """1 where the token ends the reply, minus the chance of that, at positions that list one of these ids.

    v is that chance itself, which is never less than the variance: Σd/Σv is then the hazard ratio minus 1, and its
    standard error 1/√stops.
    """

    def statistic(block: Cells) -> tuple[Floats, Floats]:
        ends = np.zeros(block.ids.shape, np.bool_)
        for token_id in ids:
            ends |= block.ids == token_id
        mass = np.where(ends, block.p, 0).sum(axis=1)
        k = block.p.shape[1]
        hit = (block.cell < k) & ends[np.arange(len(mass)), np.minimum(block.cell, k - 1)]
        return hit - mass, mass

    return statistic


def residuals(
    scored: Scored, statistics: Sequence[Statistic], first_reply: int = 0, law: Shaped | None = None
) -> list[Residuals]:
    """One Residuals a statistic, over every scored token of a pass; replies are numbered from first_reply."""
    n = len(scored.rows)
    out = [(np.empty(n), np.empty(n)) for _ in statistics]
    for start, block in blocks(scored.rows, law):
        part = slice(start, start + len(block.cell))
        for (d, v), statistic in zip(out, statistics, strict=True):
            d[part], v[part] = statistic(block)
    return [Residuals(d, v, scored.reply + first_reply) for d, v in out]


def blocks(rows: Rows, law: Shaped | None = None) -> Iterator[tuple[int, Cells]]:
    """(place of its first row, cells) of one block after another. law: None for the reference's own."""
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        block = cells(part)
        yield start, block if law is None else law(block, part["logprob"].astype(np.float64))


def concatenated(parts: Sequence[Residuals]) -> Residuals:
    return Residuals(
        np.concatenate([part.d for part in parts]),
        np.concatenate([part.v for part in parts]),
        np.concatenate([part.reply for part in parts]),
    )


def pooled(parts: Sequence[Residuals]) -> Residuals:
    """Residuals of several profiles as one, replies of different profiles kept apart."""
    ends = np.cumsum([part.reply[-1] + 1 if len(part) else 0 for part in parts])
    starts = ends - [part.reply[-1] + 1 if len(part) else 0 for part in parts]
    return concatenated(
        [Residuals(part.d, part.v, part.reply + start) for part, start in zip(parts, starts, strict=True)]
    )


def matched(one: dict[str, Residuals], other: dict[str, Residuals]) -> tuple[Residuals, Residuals] | None:
    """Equal numbers of tokens of both arms, in launch order, profile by profile; None where they share no profile."""
    counts = {name: min(len(one[name]), len(other[name])) for name in one if name in other}
    if not counts:
        return None
    return (
        pooled([one[name].first(n) for name, n in counts.items()]),
        pooled([other[name].first(n) for name, n in counts.items()]),
    )
