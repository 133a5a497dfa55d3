"""Decides residual sequences: equivalent, different or undecided, with the stock server's own beside it (A/A)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gates import sequential
from gates.checks import Levels
from gates.finding import Outcome
from gates.residuals import Residuals, matched, pooled
from gates.sequential import Interval, Sums

STOCK_LEVEL = 0.99


@dataclass(frozen=True, slots=True)
class Arms:
    """Residuals of one statistic, by profile."""

    candidate: dict[str, Residuals]
    stock: dict[str, Residuals]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of one statistic over both arms. matched: of equal numbers of tokens, None where they share no profile."""

    own: Sums
    stock: Sums
    matched: tuple[Sums, Sums] | None


def totals(arms: Arms) -> Totals:
    own, stock = (sequential.sums(pooled(list(arm.values()))) for arm in (arms.candidate, arms.stock))
    both = matched(arms.candidate, arms.stock)
    return Totals(own, stock, None if both is None else (sequential.sums(both[0]), sequential.sums(both[1])))


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistic that may reject, with the margin (in its own units, a token) that its sequence is tuned to.

    bounded: the margin is also what equivalence asks for; else the statistic may only reject.
    """

    totals: Totals
    margin: float
    bounded: bool = True


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What the e-process over the named alternatives says of these tokens.

    excused: what they look like is a fault whose size the margins bound, so that inside them it does not matter.
    """

    rejects: bool = False
    excused: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """One sequence decided. Figures are means a token, in the statistic's unit."""

    outcome: Outcome
    measured: "Measured"
    margin: float
    broken: bool  # stock's own residual lies wholly outside the margin
    immaterial: bool
    needs: int | None  # further tokens
    beside: tuple["Measured", ...] = ()  # of the other statistics, as `measured` of the one that is judged
    by_gap: bool = False  # by the difference to stock alone, as no law is known


@dataclass(frozen=True, slots=True)
class Measured:
    """What the two arms show. interval: what equivalence rests on; stock_interval: A/A."""

    own: Sums
    stock: Sums
    interval: Interval
    stock_interval: Interval

    @property
    def against_stock(self) -> bool:
        """Stock's own residual is off zero, and the interval is of the difference to it."""
        return self.stock_interval.excludes_zero


def decide(
    judged: Statistic,
    others: Sequence[Statistic],
    levels: Levels,
    equivalent: float,
    replies: int,
    suspicion: Suspicion = Suspicion(),
) -> Decision:
    """judged has data of both arms; it and the others may reject, its own interval decides on equivalence.

    equivalent: coverage of that interval. replies: the fewest from which a claim beyond the null may be made.
    """
    margin = judged.margin
    measured = _measured(judged, 1 - equivalent)
    enough = min(measured.own.replies, measured.stock.replies) >= replies
    broken = measured.stock_interval.outside(margin)
    inside = measured.interval.inside(margin)
    outside = enough and _measured(judged, levels.outside).interval.outside(margin)
    rejected = any(_rejects(statistic, levels, suspicion) for statistic in (judged, *others))
    outcome: Outcome = "undecided"
    if not judged.bounded:
        outcome, broken = "different" if rejected else "passed", False
    elif inside and enough and not broken and (not rejected or suspicion.excused):
        outcome = "equivalent"
    elif not broken and (outside or (rejected and not (inside and suspicion.excused))):
        outcome = "different"
    return Decision(
        outcome=outcome,
        measured=measured,
        margin=margin,
        broken=broken,
        immaterial=rejected and outcome == "equivalent",
        needs=None
        if broken or outcome != "undecided"
        else _needs(measured, margin, levels, replies, against=measured.against_stock),
        beside=tuple(_measured(other, 1 - equivalent) for other in others),
    )


def decide_by_gap(
    judged: Statistic, others: Sequence[Statistic], levels: Levels, equivalent: float, replies: int
) -> Decision:
    """As `decide`, where no law holds for either server's tokens: by the difference on equal numbers of them alone.

    It rejects at levels.reject: there is no first half whose level could be spent beside the gap's.
    """
    margin = judged.margin
    measured = _by_gap(judged, 1 - equivalent)
    enough = min(measured.own.replies, measured.stock.replies) >= replies
    inside = enough and measured.interval.inside(margin)
    outside = enough and _by_gap(judged, levels.outside).interval.outside(margin)
    rejected = enough and any(_by_gap(one, levels.reject).interval.excludes_zero for one in (judged, *others))
    outcome: Outcome = "undecided"
    if not judged.bounded:
        outcome = "different" if rejected else "passed"
    elif inside:
        outcome = "equivalent"
    elif outside or rejected:
        outcome = "different"
    return Decision(
        outcome=outcome,
        measured=measured,
        margin=margin,
        broken=False,
        immaterial=rejected and inside,
        needs=_needs(measured, margin, levels, replies, against=True) if outcome == "undecided" else None,
        beside=tuple(_by_gap(other, 1 - equivalent) for other in others),
        by_gap=True,
    )


def _by_gap(judged: Statistic, alpha: float) -> Measured:
    """Of equal numbers of tokens: the totals' own are of all, and only described."""
    both = judged.totals.matched
    assert both is not None, "a profile without tokens of both servers has no data, which was asked before"
    at_stock = sequential.estimating(both[1], judged.margin, 1 - STOCK_LEVEL)
    return Measured(*both, sequential.gap(*both, judged.margin, alpha), at_stock)


def _measured(judged: Statistic, alpha: float) -> Measured:
    own, stock = judged.totals.own, judged.totals.stock
    at_stock = sequential.estimating(stock, judged.margin, 1 - STOCK_LEVEL)
    if not at_stock.excludes_zero:
        return Measured(own, stock, sequential.estimating(own, judged.margin, alpha), at_stock)
    one, other = (sequential.estimating(arm, judged.margin, alpha / 2) for arm in (own, stock))
    return Measured(own, stock, one.minus(other), at_stock)


def _rejects(statistic: Statistic, levels: Levels, suspicion: Suspicion) -> bool:
    """The candidate is not what the reference says (by this statistic, or by the e-process), nor is it what stock is.

    The first alone would call a numerical floor that both share a difference; asking that stock does not reject would
    be a race that two identical servers lose.
    """
    own, both = statistic.totals.own, statistic.totals.matched
    if not suspicion.rejects and not sequential.rejecting(own, statistic.margin, levels.reject).excludes_zero:
        return False
    return both is not None and sequential.gap(*both, statistic.margin, levels.gap).excludes_zero


def _needs(measured: Measured, margin: float, levels: Levels, replies: int, against: bool) -> int | None:
    """Further tokens until the sequence is typically inside the margin, or the difference is typically found."""
    own, off = measured.own, abs(measured.interval.value)
    variance = own.spread / own.n + (measured.stock.spread / measured.stock.n if against else 0)
    wanted = []
    if off < margin:
        wanted.append(sequential.TYPICAL * variance / (margin - off) ** 2)
    if off > 0:
        wanted.append(sequential.reach(levels.gap) * 2 * variance / off**2)
    if not wanted:
        return None
    by_replies = (replies - own.replies) * own.n / own.replies
    return max(1, math.ceil(max(min(wanted) - own.n, by_replies)))
