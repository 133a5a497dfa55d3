"""Likely wrong models as alternatives of the e-process: an oracle scores the replies' tokens as the reference does.

A draft model, a quantized checkpoint or a smaller sibling q stands for the candidates that draw from it where they
should not: r = (1 − e)p + e·q for each e of SHARES.
"""

from dataclasses import dataclass

import numpy as np

from gates.alternatives import BEYOND_NAT, KEPT, Alternative
from gates.residuals import UNKNOWN, Cells, Floats
from gates.scored import LEAST_LOGPROB, Ints, Rows, Scored

SHARES = (0.03, 0.1, 0.3, 1.0)
"""Of the tokens: what the oracle is taken to have drawn."""

OF_THE_SEQUENCE = 0.1
"""The share whose log-ratio is the score of an oracle's residuals."""


@dataclass(frozen=True, slots=True)
class Told:
    """One oracle's scores of a pass. rows: of SCORE_DTYPE; at: (n,) the row of each scored token, −1 where it has
    none."""

    rows: Rows
    at: Ints


def aligned(scored: Scored, told: Scored) -> Told:
    """told: the oracle's scores joined with the same replies as the reference's."""
    wanted, there = _places(scored), _places(told)
    if not len(there):
        return Told(told.rows, np.full(len(wanted), -1, np.int64))
    at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
    return Told(told.rows, np.where(there[at] == wanted, at, -1).astype(np.int64))


def _places(scored: Scored) -> Ints:
    return np.asarray(scored.reply * (1 << 32) + scored.rows["position"], np.int64)


def alternatives(name: str) -> tuple[Alternative, ...]:
    return tuple(Alternative("oracle", share, _says(name, share)) for share in SHARES)


def _says(name: str, share: float) -> str:
    if share == 1:
        return f"the model {name}"
    return f"{100 * share:g} % of tokens drawn by the model {name} without verification"


@dataclass(frozen=True, slots=True)
class Odds:
    """n positions as an oracle sees them beside the reference. p, q: (n, k + 1) of the reference's cells and of
    `other`; ratio: q/p, 1 where the reference lists no token; cell: (n,) where the token fell."""

    p: Floats
    q: Floats
    ratio: Floats
    cell: Ints


def odds(block: Cells, told: Told | None, start: int) -> Odds:
    """Of the block that begins at token `start` of its pass. told None: the oracle has no scores of the pass.

    q is made of what the oracle lists alone, which the token drawn has no part in: so it is a law over the reference's
    cells that is fixed before the token is seen, and Σq = 1. A cell that the oracle does not list has at most the
    chance of its last listed token, and all such cells together at most half of what its list leaves; `other` takes
    the rest. Where the oracle has no score, q = p.
    The reference gives `other` at most the chance max(1 − Σp, UNKNOWN) that p has here, so that Σ P(c)·q(c)/p(c) ≤
    Σ q = 1: products of any (1 − e) + e·q/p are supermartingales under the reference's law.
    """
    p = np.concatenate([block.p, np.maximum(block.other, UNKNOWN)[:, None]], axis=1)
    q = p.copy()
    at = np.full(len(p), -1) if told is None else told.at[start : start + len(p)]
    known = np.flatnonzero(at >= 0)
    if told is not None and len(known):
        q[known] = _over(block.ids[known], block.p[known] > 0, told.rows[at[known]])
    ratio = np.ones_like(p)
    np.divide(q, p, out=ratio, where=p > 0)
    return Odds(p, q, ratio, block.cell)


def _over(ids: np.ndarray[tuple[int, int], np.dtype[np.int32]], cells: np.ndarray, rows: Rows) -> Floats:
    """(n, k + 1): what the oracle's list gives the reference's cells and `other`. cells: (n, k) that are outcomes."""
    listed, logq = rows["ids"], rows["logprobs"].astype(np.float64)
    logq[(listed < 0) | ~(logq > LEAST_LOGPROB)] = -np.inf
    chance = np.exp(np.minimum(logq, 0))
    chance /= np.maximum(chance.sum(axis=1, keepdims=True), 1)
    q = np.zeros(ids.shape)
    found = np.zeros(ids.shape, np.bool_)
    for column in range(chance.shape[1]):
        same = (ids == listed[:, column : column + 1]) & (chance[:, column : column + 1] > 0) & ~found
        q += same * chance[:, column : column + 1]
        found |= same
    unlisted = cells & ~found
    least = np.where(chance > 0, chance, np.inf).min(axis=1) * np.exp(-BEYOND_NAT)
    rest = np.maximum(1 - chance.sum(axis=1), 0) / (2 * np.maximum(unlisted.sum(axis=1), 1))
    q = np.where(unlisted, np.minimum(least, rest)[:, None], np.where(cells, q, 0))
    return np.concatenate([q, np.maximum(1 - q.sum(axis=1, keepdims=True), 0)], axis=1)


def log_ratios(seen: Odds) -> Floats:
    """(n, shares): log r/p of the cell that was drawn, KEPT of each r the reference's own law."""
    drawn = seen.ratio[np.arange(len(seen.cell)), seen.cell]
    shares = np.array(SHARES)
    return np.asarray(np.log((1 - KEPT) * (1 - shares + shares * drawn[:, None]) + KEPT), np.float64)


def residual(seen: Odds) -> tuple[Floats, Floats, Floats]:
    """(d, v, gain) of g = log r/p, r being that of OF_THE_SEQUENCE: d = g(cell) − Σ p g and its variance v.

    gain = Σ (q − p) g: what d is in the mean, a token, if all tokens were the oracle's. A share e of them moves the
    mean by e·gain, whatever e is.
    """
    g = np.log((1 - KEPT) * (1 - OF_THE_SEQUENCE + OF_THE_SEQUENCE * seen.ratio) + KEPT)
    mean = (seen.p * g).sum(axis=1)
    square = (seen.p * g**2).sum(axis=1)
    drawn = g[np.arange(len(g)), seen.cell]
    return drawn - mean, np.maximum(square - mean**2, 0), (seen.q * g).sum(axis=1) - mean


def statistic(name: str) -> str:
    """The name of an oracle's residuals among the statistics of an arm's tokens."""
    return f"oracle {name}"
