"""Confidence sequences for a mean residual: valid whenever one looks (Robbins' normal mixture)."""

import math
from dataclasses import dataclass

import numpy as np

from gates.residuals import Residuals

TYPICAL = 14.0
"""V·b²/v̄² at which a margin b is typically reached: where the sequences are made tightest, and forecasts aim."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a sequence needs of n residuals.

    predicted: Σ v, the variance of the total where the candidate is lossless: for rejecting that.
    spread: the largest of predicted, Σ(D − θ̂)² and Σ(S − θ̂L)² over replies, for estimates and equivalence, where
    losslessness is not assumed: with predicted alone, a fault confined to a few replies hides in the mean.
    """

    n: int
    replies: int
    total: float
    predicted: float
    spread: float

    @property
    def mean(self) -> float:
        return self.total / self.n

    @property
    def variance(self) -> float:
        """v̄, a token's predicted variance."""
        return self.predicted / self.n


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float
    high: float

    def inside(self, margin: float) -> bool:
        return -margin <= self.low and self.high <= margin

    def outside(self, margin: float) -> bool:
        return self.low > margin or self.high < -margin

    @property
    def excludes_zero(self) -> bool:
        return self.outside(0.0)

    def minus(self, other: "Interval") -> "Interval":
        """Bounds on the difference that hold whenever both intervals do."""
        return Interval(self.value - other.value, self.low - other.high, self.high - other.low)


def sums(residuals: Residuals) -> Sums:
    """Raises nothing: n = 0 gives sums whose mean does not exist."""
    n = len(residuals)
    total, predicted = float(residuals.d.sum()), float(residuals.v.sum())
    if n == 0:
        return Sums(0, 0, 0.0, 0.0, 0.0)
    mean = total / n
    of_replies = np.bincount(residuals.reply, weights=residuals.d)
    lengths = np.bincount(residuals.reply)
    spread = max(predicted, float(((residuals.d - mean) ** 2).sum()), float(((of_replies - mean * lengths) ** 2).sum()))
    return Sums(n, int((lengths > 0).sum()), total, predicted, spread)


def mixture(v_opt: float, alpha: float) -> float:
    """ρ of the normal mixture that is tightest at variance v_opt."""
    fall = 2 * math.log(1 / alpha)
    return v_opt / (fall + math.log1p(fall))


def half_width(variance: float, rho: float, alpha: float) -> float:
    """w with P(|S − nθ| > w at any n) ≤ alpha, for a sum whose variance process is `variance`."""
    return math.sqrt((variance + rho) * math.log((variance + rho) / (alpha**2 * rho)))


def reach(alpha: float) -> float:
    """w² in units of the variance, where the sequence is tightest."""
    rho = mixture(1.0, alpha)
    return half_width(1.0, rho, alpha) ** 2


def rejecting(found: Sums, margin: float, alpha: float) -> Interval:
    """Of the mean residual, exact where the candidate is lossless. margin: per token."""
    return _interval(found.total, found.n, found.predicted, mixture(_v_opt(found.variance, margin), alpha), alpha)


def estimating(found: Sums, margin: float, alpha: float) -> Interval:
    """Of the mean residual, whatever the candidate is. margin: per token."""
    return _interval(found.total, found.n, found.spread, mixture(_v_opt(found.variance, margin), alpha), alpha)


def gap(candidate: Sums, stock: Sums, margin: float, alpha: float) -> Interval:
    """Of the difference of the mean residuals over equal numbers of tokens.

    A numerical floor shared by both servers falls out of it, so that it alone says that the two are not alike.
    """
    assert candidate.n == stock.n
    rho = mixture(_v_opt(candidate.variance + stock.variance, margin), alpha)
    return _interval(candidate.total - stock.total, candidate.n, candidate.spread + stock.spread, rho, alpha)


def _v_opt(variance: float, margin: float) -> float:
    # Where the reference is sure of every token v̄ is 0, and with it a margin in its units; any positive ρ is valid.
    return max(TYPICAL * variance**2 / margin**2, 1e-12) if margin > 0 else 1e-12


def _interval(total: float, n: int, variance: float, rho: float, alpha: float) -> Interval:
    width = half_width(variance, rho, alpha)
    return Interval(total / n, (total - width) / n, (total + width) / n)
