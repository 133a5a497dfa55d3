"""What a lossy server might sample from, by name: laws over the reference's cells, fixed before the token is seen.

A token's likelihood under such a law over that under the reference multiplies up to a test martingale (gates.eprocess).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gates.residuals import TIED_NAT, UNKNOWN, Cells, Floats

Family = Literal["temperature", "top_p", "top_k", "min_p", "greedy", "threshold", "junk", "oracle"]

KEPT = 0.01
"""Share of the reference's own law in every alternative: none dies of one noisy cell, and it costs 1 % of growth."""

KEPT_BY_THRESHOLDS = (0.1, 0.5)
"""Of a threshold's: not every position has a draft, nor every draft the likeliest token."""

BEYOND_NAT = 1.0
"""How much less likely than the last listed token those beyond it typically are."""


@dataclass(frozen=True, slots=True)
class Alternative:
    family: Family
    setting: float
    says: str  # "looks like …"
    kept: float = KEPT


def _named() -> Iterator[Alternative]:
    for value in (0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.25):
        yield Alternative("temperature", value, f"temperature ≈ {value:g}")
    for value in (0.9, 0.95, 0.98, 0.99):
        yield Alternative("top_p", value, f"truncation, top_p ≈ {value:g}")
    for value in (5, 10, 20):
        yield Alternative("top_k", value, f"truncation, top_k ≈ {value}")
    for value in (0.02, 0.05, 0.1):
        yield Alternative("min_p", value, f"truncation, min_p ≈ {value:g}")
    for value in (0.01, 0.05, 0.2):
        yield Alternative("greedy", value, f"greedy decoding of about {100 * value:g} % of the tokens")
    for value in (0.3, 0.5, 0.8):
        says = f"drafts accepted without a test where they have a chance of {value:g}"
        for kept in KEPT_BY_THRESHOLDS:
            yield Alternative("threshold", value, says, kept)
    for value in (1e-4, 1e-3, 1e-2):
        says = f"about {100 * value:g} % of arbitrary tokens{' or more' if value == 1e-2 else ''}"
        yield Alternative("junk", value, says)


ALTERNATIVES = tuple(_named())


def log_ratios(block: Cells) -> Floats:
    """(n, J): log r_j(c)/p(c) of the cell that was drawn, J as in ALTERNATIVES.

    `other` counts as one cell of at least UNKNOWN; with that Σp may exceed 1, which makes it a supermartingale.
    """
    drawn = _Drawn.of(block)
    out = np.empty((len(block.cell), len(ALTERNATIVES)))
    for column, alternative in enumerate(ALTERNATIVES):
        ratio = _RATIOS[alternative.family](drawn, alternative.setting)
        out[:, column] = np.log((1 - alternative.kept) * ratio + alternative.kept)
    return out


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A block as the alternatives need it. before: the mass of the cells that are likelier; top, top_mass: whether the
    token is of the tied set of likeliest tokens, and that set's mass."""

    logp: np.ndarray[tuple[int, int], np.dtype[np.float32]]  # (n, k)
    p: Floats  # (n, k)
    before: Floats  # (n, k)
    total: Floats
    other: Floats
    beyond: Floats  # log p of a typical token of `other`
    cell: np.ndarray[tuple[int], np.dtype[np.int64]]
    drawn_logp: Floats
    drawn_before: Floats
    drawn_p: Floats
    top: np.ndarray[tuple[int], np.dtype[np.bool_]]
    top_mass: Floats

    @staticmethod
    def of(block: Cells) -> "_Drawn":
        n, k = block.p.shape
        other = np.maximum(block.other, UNKNOWN)
        sums = np.cumsum(block.p, axis=1)
        tied = block.logp >= block.logp[:, :1] - TIED_NAT
        rows, inside = np.arange(n), np.minimum(block.cell, k - 1)
        is_other = block.cell == k
        return _Drawn(
            logp=block.logp.astype(np.float32),
            p=block.p,
            before=sums - block.p,
            total=sums[:, -1],
            other=other,
            beyond=np.where(block.logp > -np.inf, block.logp, np.inf).min(axis=1) - BEYOND_NAT,
            cell=block.cell,
            drawn_logp=block.logp[rows, inside],
            drawn_before=np.where(is_other, sums[:, -1], (sums - block.p)[rows, inside]),
            drawn_p=np.where(is_other, other, block.p[rows, inside]),
            top=block.cell < tied.sum(axis=1),
            top_mass=np.minimum(np.where(tied, block.p, 0).sum(axis=1), 1),
        )


def _temperature(drawn: _Drawn, temperature: float) -> Floats:
    tilt = 1 / temperature - 1
    # `other` is many tokens: any tilt is valid that is fixed before the token is seen, and this one is near the truth.
    of_other = np.exp(tilt * drawn.beyond)
    scale = np.exp(np.float32(1 + tilt) * drawn.logp).sum(axis=1) + drawn.other * of_other
    of_drawn = np.where(drawn.cell == drawn.p.shape[1], of_other, np.exp(tilt * drawn.drawn_logp))
    return np.asarray(of_drawn / scale, np.float64)


def _top_p(drawn: _Drawn, mass: float) -> Floats:
    kept = np.where(drawn.before < mass, drawn.p, 0).sum(axis=1) + np.where(drawn.total < mass, drawn.other, 0)
    return np.asarray((drawn.drawn_before < mass) / kept, np.float64)


def _top_k(drawn: _Drawn, k: float) -> Floats:
    if k > drawn.p.shape[1]:
        return np.ones(len(drawn.cell))  # fewer are listed: what it would cut off cannot be seen
    return np.asarray((drawn.cell < k) / drawn.p[:, : int(k)].sum(axis=1), np.float64)


def _min_p(drawn: _Drawn, share: float) -> Floats:
    least = share * drawn.p[:, 0]
    kept = np.where(drawn.p >= least[:, None], drawn.p, 0).sum(axis=1)
    return np.asarray(((drawn.drawn_p >= least) & (drawn.cell < drawn.p.shape[1])) / kept, np.float64)


def _greedy(drawn: _Drawn, share: float) -> Floats:
    return (1 - share) + share * drawn.top / drawn.top_mass


def _threshold(drawn: _Drawn, threshold: float) -> Floats:
    """The likeliest token is drafted, and taken as it is where it is that likely."""
    return np.where(drawn.p[:, 0] >= threshold, drawn.top / drawn.top_mass, 1.0)


def _junk(drawn: _Drawn, share: float) -> Floats:
    """Of a large vocabulary nearly every token is `other`."""
    return np.asarray((1 - share) + share * (drawn.cell == drawn.p.shape[1]) / drawn.other, np.float64)


_RATIOS: dict[Family, Callable[[_Drawn, float], Floats]] = {
    "temperature": _temperature,
    "top_p": _top_p,
    "top_k": _top_k,
    "min_p": _min_p,
    "greedy": _greedy,
    "threshold": _threshold,
    "junk": _junk,
}
