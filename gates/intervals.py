"""Distribution-free intervals for latencies, and t intervals for rates. Each gives one gates.finding.Estimate."""

import math

import numpy as np
import numpy.typing as npt

from gates.finding import Estimate

LEVEL = 0.95

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def order_statistic(values: Floats, q: float) -> Estimate:
    """A quantile of independent requests: the interval's ends are order statistics, ranks from the binomial.

    Distribution-free: P(x₍l₎ ≤ quantile < x₍u₎) = P(l ≤ B < u), B binomial(n, q). A side that the sample is too small
    to bound is None (the p99 of fewer than about 370 requests has no upper end).
    """
    from scipy import special

    n = len(values)
    below = special.bdtr(np.arange(n), n, q)  # P(B ≤ k) for k = 0 … n − 1
    tail = (1 - LEVEL) / 2
    low = int(np.searchsorted(below, tail, side="right"))  # the largest l with P(B ≤ l − 1) ≤ tail
    high = int(np.searchsorted(below, 1 - tail, side="left")) + 1  # the smallest u with P(B ≤ u − 1) ≥ 1 − tail
    return Estimate(
        value=float(np.quantile(values, q)),
        low=float(values[low - 1]) if low >= 1 else None,
        high=float(values[high - 1]) if high <= n else None,
        level=LEVEL,
        n=n,
        unit="requests",
        method="order statistics, binomial ranks",
    )


def clustered(values: Floats, reply: Ints, q: float) -> Estimate:
    """A quantile of gaps, which resemble each other within a reply: Woodruff's interval.

    values: (n,) sorted; reply: (n,) whose each is. The share of gaps at or under the estimate is a ratio over replies,
    its standard error that of a cluster sample; the interval's ends are the quantiles at that share ± z·se
    (Woodruff 1952). None where there is one reply, or the share's end lies beyond the sample.
    """
    from scipy import special

    value = float(np.quantile(values, q))
    lengths = np.bincount(reply)
    under = np.bincount(reply, weights=values <= value, minlength=len(lengths))
    share, n, replies = under.sum() / len(values), len(values), len(lengths)
    spread = math.sqrt(replies / (replies - 1) * float(((under - share * lengths) ** 2).sum())) if replies > 1 else None
    low = high = None
    if spread is not None:
        # Not less than one gap of half a step: where the replies happen to agree, the sample still has an end.
        reach = max(float(special.ndtri((1 + LEVEL) / 2)) * spread / n, 0.5 / n)
        low = float(np.quantile(values, q - reach)) if q - reach > 0 else None
        high = float(np.quantile(values, q + reach)) if q + reach < 1 - 0.5 / n else None
    return Estimate(
        value=value,
        low=low,
        high=high,
        level=LEVEL,
        n=n,
        unit=f"gaps of {replies} replies",
        method="Woodruff, clustered by reply",
    )


def mean(values: Floats, value: float, said: tuple[int, str, str]) -> Estimate:
    from scipy import special

    n, unit, method = said
    reach = float(special.stdtrit(len(values) - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return Estimate(
        value=value, low=max(value - reach, 0.0), high=value + reach, level=LEVEL, n=n, unit=unit, method=method
    )
