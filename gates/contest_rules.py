"""The contest's record and its rules: gates, reason, SpecScore. Pure arithmetic on one record.

The rules are those of three published records, which this module reproduces to the last digit. They are lenient on
purpose of fidelity to that judge: a gate on a gap fails only where the whole 95 % interval lies outside its bound, and
a gate without data counts as passed. Plan strict does neither.
"""

import math
import statistics
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Z = 1.96  # the contest's own figure for 95 %, two-sided; the exact quantile would move its boundaries

GateOutcome = Literal["pass", "fail", "n/a"]

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(allow_inf_nan=False, ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Submission(_Frozen):
    """What was judged, in the submitter's words."""

    title: str
    model: str
    track: str
    kind: str | None = None
    speculator: str | None = None
    engine: str | None = None
    page_verdict: str | None = None  # the sentence its page shows; in recorded results only


class Ratio(_Frozen):
    """Candidate's token rate over stock's: 0 in a pass where the candidate failed more requests than stock."""

    passes: list[_NotNegative]
    ratio: _NotNegative | None  # their median; None where no pass was measured


class Gap(_Frozen):
    """Candidate − stock of one mean per sampled reply."""

    gap: _Finite
    se: _NotNegative
    candidate: _Finite
    stock: _Finite


class Length(_Frozen):
    """Ratio of mean reply lengths, candidate over stock, with its 95 % interval."""

    ratio: _Finite
    low: _Finite
    high: _Finite
    paired: bool | None = None  # by prompt; None where the record does not say
    replies: int | None = None


class Memory(_Frozen):
    ok: bool
    peak_mib: _NotNegative
    allowed_mib: _NotNegative  # utilization × the device's total + slack


class Limits(_Frozen):
    """The limits a record was judged by; None: that gate is not set for this task."""

    greedy_agreement_floor: _NotNegative | None
    likelihood_bound: _NotNegative | None  # nat a token
    argmax_bound: _NotNegative | None  # share of tokens
    fidelity_ceiling: _NotNegative | None  # nat a token, mean absolute difference
    length_margin: _NotNegative | None  # relative
    memory_slack_mib: _NotNegative | None


class Record(_Frozen):
    """A contest's record. Every field is named in every record; what was not measured is None."""

    ratios: dict[str, Ratio]  # by workload
    specscore: _NotNegative | None
    greedy_agreement: _Finite | None  # share of greedy tokens that agree
    likelihood: Gap | None  # mean log-probability of a reply's tokens, nat a token
    argmax: Gap | None  # share of sampled tokens that are not the reference's first choice
    fidelity: _NotNegative | None
    lengths: dict[str, Length] | None
    memory: Memory | None
    acceptance: dict[str, _Finite]  # tokens a verify step
    limits: Limits
    reason: str | None  # why it failed; None where it passed
    score: _NotNegative | None


class Gate(_Frozen):
    """One gate of one record. `reason` says what failed; `power` what it would have caught."""

    check: str
    outcome: GateOutcome
    reason: str | None = None
    power: tuple[float, float, float] | None = None  # P(fail) for a true gap of 1, 2, 3 bounds; None: no such figure


def medians(record: Record) -> dict[str, float]:
    """Each workload's ratio: the median of its passes. A workload without a measured pass has none."""
    return {name: statistics.median(ratio.passes) for name, ratio in record.ratios.items() if ratio.passes}


def geometric_mean(ratios: dict[str, float]) -> float:
    """The n-th root of the product, in the record's order: the published scores come out to the last digit."""
    return math.prod(ratios.values()) ** (1 / len(ratios))


def reason(record: Record) -> str | None:
    """Every failed gate's reason, or None where all passed."""
    return "; ".join(gate.reason for gate in gates(record) if gate.reason is not None) or None


def specscore(record: Record) -> float | None:
    """Geometric mean of the medians, 0 where a gate failed; None where a workload has no measured pass."""
    if reason(record) is not None:
        return 0.0
    found = medians(record)
    return geometric_mean(found) if found and len(found) == len(record.ratios) else None


def sentence(record: Record) -> str:
    """The verdict as the contest's page words it."""
    failed = reason(record)
    return "Passed every gate." if failed is None else f"Lossless gate failed: {failed}. SpecScore 0."


def gates(record: Record) -> list[Gate]:
    """Every gate, in the order of the contest's page."""
    limits = record.limits
    return [
        _memory(record.memory),
        _ceiling(record.fidelity, limits.fidelity_ceiling),
        _gap("likelihood", record.likelihood, limits.likelihood_bound, "sampled replies' likelihood"),
        _gap("argmax", record.argmax, limits.argmax_bound, "share of first choices"),
        _floor(record.greedy_agreement, limits.greedy_agreement_floor),
        _lengths(record.lengths, limits.length_margin),
        _failures(record.ratios),
    ]


def _gate(check: str, failed: bool, why: str, power: tuple[float, float, float] | None = None) -> Gate:
    return Gate(check=check, outcome="fail" if failed else "pass", reason=why if failed else None, power=power)


def _memory(memory: Memory | None) -> Gate:
    if memory is None:
        return Gate(check="memory", outcome="n/a")
    return _gate("memory", memory.peak_mib > memory.allowed_mib, "used more device memory than allowed")


def _ceiling(fidelity: float | None, ceiling: float | None) -> Gate:
    if fidelity is None or ceiling is None:
        return Gate(check="fidelity", outcome="n/a")
    why = "log-probabilities of the fixed texts differ from the stock engine's by more than the ceiling"
    return _gate("fidelity", fidelity > ceiling, why)


def _floor(agreement: float | None, floor: float | None) -> Gate:
    if agreement is None or floor is None:
        return Gate(check="greedy_agreement", outcome="n/a")
    return _gate("greedy_agreement", agreement < floor, "greedy agreement with the stock engine below the floor")


def _gap(check: str, gap: Gap | None, bound: float | None, name: str) -> Gate:
    if gap is None or bound is None:
        return Gate(check=check, outcome="n/a")
    failed = abs(gap.gap) - Z * gap.se > bound
    return _gate(check, failed, f"{name} differs from the stock engine's", _power(bound, gap.se))


def _lengths(lengths: dict[str, Length] | None, margin: float | None) -> Gate:
    if not lengths or margin is None:
        return Gate(check="lengths", outcome="n/a")
    off = [name for name, found in lengths.items() if outside(found, margin)]
    # Each workload is a test of its own: what the weakest of them would have caught bounds what was.
    weakest = max((found.high - found.low) / 2 / Z for found in lengths.values())
    why = f"reply lengths differ from the stock engine's in {listed(off)}"
    return _gate("lengths", bool(off), why, _power(margin, weakest))


def outside(length: Length, margin: float) -> bool:
    """Whether the interval misses [1 − margin, 1 + margin]."""
    return length.low > 1 + margin or length.high < 1 - margin


def _failures(ratios: dict[str, Ratio]) -> Gate:
    if not any(ratio.passes for ratio in ratios.values()):
        return Gate(check="failures", outcome="n/a")
    most = [name for name, ratio in ratios.items() if failed_passes(ratio) * 2 > len(ratio.passes)]
    return _gate("failures", bool(most), f"failed more requests than the stock engine in most {listed(most)} passes")


def failed_passes(ratio: Ratio) -> int:
    """In how many passes the candidate failed more requests than stock: those are recorded as ratio 0."""
    return sum(value == 0 for value in ratio.passes)


def _power(bound: float, se: float) -> tuple[float, float, float]:
    return caught(1 * bound, bound, se), caught(2 * bound, bound, se), caught(3 * bound, bound, se)


def caught(gap: float, bound: float, se: float) -> float:
    """P(the gate fails | a true gap), for a normal estimate: the whole interval must lie outside ±bound."""
    reach = bound + Z * se
    if se == 0:
        return float(abs(gap) > reach)
    normal = statistics.NormalDist(gap, se)
    return normal.cdf(-reach) + 1 - normal.cdf(reach)


def listed(names: list[str]) -> str:
    """ "solo", "solo and busy", "solo, team and busy"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
