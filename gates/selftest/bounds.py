"""What the gates are held to: each figure of the selftest beside what it may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gates.selftest import rates

BY_E_ALONE = {
    "temperature-0.95": 8_500,
    "temperature-0.98": 52_000,
    "temperature-1.05": 9_000,
    "top-p-0.98": 3_000,
    "top-p-0.95": 1_100,
    "top-k-20": 300,
    "min-p-0.05": 200,
    "greedy-0.05": 15_000,
    "typical": 800,
    "threshold-0.5": 750,
    "threshold-0.8": 1_000,
    "noise-0.03": 22_000,
    "smaller": 600,
    "junk-0.001": 4_000,
}
"""Median tokens to rejection by E ≥ 1000 alone, as measured when the gates were designed."""

SLOWER = 1.5  # times those tokens that a fault may take
MEDIAN_TOKENS, MOST_TOKENS = 35_000, 65_000
SHARPER = 5.0
WRONG = 0.005  # of lossless comparisons
AT_THE_MARGIN = 0.05  # of candidates exactly there that may be called equivalent
POWER = 0.9
DRAWS = {"reference": {"0.005": 5_000, "0.01": 1_500}, "verdict": {"0.005": 5_000, "0.01": 2_100}}
"""half of repeat_prefix → KL → draws that find POWER of the candidates; against stock's draws it takes more."""


@dataclass(frozen=True, slots=True)
class Bound:
    """figure: None where it was not reached. of: how many streams or runs it was counted in; 0 of a median."""

    says: str
    figure: float | None
    limit: float
    of: int = 0
    least: bool = False  # the limit is what the figure must reach

    @property
    def holds(self) -> bool:
        if self.figure is None:
            return False
        return self.figure >= self.limit if self.least else self.figure <= self.limit

    def as_json(self) -> dict[str, Any]:
        limit = {"at_least" if self.least else "at_most": self.limit}
        return {"says": self.says, "figure": self.figure, **limit, "of": self.of, "holds": self.holds}


def counted(says: str, count: int, of: int, rate: float) -> Bound:
    """A count whose chance may be `rate`; more than that only as far as luck brings it once in 1,000 selftests."""
    return Bound(says, count, rates.allowed(of, rate), of)


def of_e(kind: str, above: dict[str, int], streams: int) -> list[Bound]:
    return [counted(f"E ≥ {bound}, {kind}", count, streams, 1 / float(bound)) for bound, count in above.items()]


def of_equivalent(tokens: Sequence[int]) -> list[Bound]:
    """tokens: of each lossless comparison until EQUIVALENT, −1 where it was not."""
    late = [sum(not 0 < one <= most for one in tokens) for most in (MEDIAN_TOKENS, MOST_TOKENS)]
    return [
        counted(f"lossless, not EQUIVALENT by {most:,} tokens", count, len(tokens), rate)
        for most, count, rate in zip((MEDIAN_TOKENS, MOST_TOKENS), late, (0.5, 0.05), strict=True)
    ]


def of_fault(name: str, tokens: float | None) -> list[Bound]:
    """tokens: the median by E alone."""
    known = BY_E_ALONE.get(name)
    return [] if known is None else [Bound(f"{name}, median tokens by E alone", tokens, SLOWER * known)]
