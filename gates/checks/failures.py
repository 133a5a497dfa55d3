"""Does the candidate drop requests that stock serves?"""

from collections import Counter

from pydantic import Field

from gates.checks import Checked, CheckSettings, Terms
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding, Outcome

SEQUENCES = 0
P_VALUES = 1

METHOD = "exact bounds (Clopper–Pearson), each side at its own level"


class Settings(CheckSettings):
    """Failed requests in 100 beyond stock's own that are within the margin. 1: none in 300 shows it."""

    margin_points: float = Field(default=1.0, gt=0, lt=100)


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    kinds, requests = _count(evidence.candidate)
    stock_kinds, stock_requests = _count(evidence.stock)
    if not requests or not stock_requests:
        which = evidence.candidate if not requests else evidence.stock
        why = f"no pass has ended on {which.label}"
        return Checked(
            [
                Finding(
                    check="failures", required=terms.required, outcome="undecided", missing=why, says=f"no data: {why}"
                )
            ]
        )
    failed, stock_failed = kinds.total(), stock_kinds.total()
    estimate = _estimate(failed, requests, terms.equivalent)
    margin = stock_failed / stock_requests + settings.margin_points / 100
    outcome: Outcome = "undecided"
    if p_more(failed, requests, stock_failed, stock_requests) <= terms.p_value:
        outcome = "different"
    elif estimate.high is not None and estimate.high <= margin:
        outcome = "equivalent"
    finding = Finding(
        check="failures",
        required=terms.required,
        outcome=outcome,
        estimate=estimate,
        stock=_estimate(stock_failed, stock_requests, terms.equivalent),
        margin=margin,
        says=_says(outcome, kinds, requests, stock_failed, stock_requests),
    )
    needs = requests_needed(failed, requests, margin, terms.equivalent) if outcome == "undecided" else None
    return Checked([finding], _in_tokens(needs, evidence.candidate, requests))


def _count(arm: Arm) -> tuple[Counter[str], int]:
    """Failures by kind, and requests. What the client itself cancelled says nothing of the server."""
    ends = [reply.failure for one in arm.passes for reply in one.replies if reply.failure != "cancelled"]
    return Counter(kind for kind in ends if kind), len(ends)


def p_more(failed: int, requests: int, stock_failed: int, stock_requests: int) -> float:
    """P of so many failures or more on the candidate's side, given how many there were in all: Fisher's exact test."""
    from scipy.stats import hypergeom

    total = failed + stock_failed
    return float(hypergeom.sf(failed - 1, requests + stock_requests, total, requests))


def bounds(failed: int, requests: int, level: float) -> tuple[float, float]:
    """Lower and upper bound of a rate, each with coverage `level` by itself."""
    from scipy.stats import beta

    low = float(beta.ppf(1 - level, failed, requests - failed + 1)) if failed else 0.0
    high = float(beta.ppf(level, failed + 1, requests - failed)) if failed < requests else 1.0
    return low, high


def _estimate(failed: int, requests: int, level: float) -> Estimate:
    low, high = bounds(failed, requests, level)
    return Estimate(
        value=failed / requests,
        low=low,
        high=high,
        level=2 * level - 1,
        n=requests,
        unit="share of requests",
        method=METHOD,
    )


def requests_needed(failed: int, requests: int, margin: float, level: float) -> int | None:
    """Further requests until the upper bound is inside the margin, the rate staying as it is; None where it is not."""
    rate = failed / requests
    if rate >= margin:
        return None
    enough = requests
    while bounds(round(rate * enough), enough, level)[1] > margin:
        enough += max(1, enough // 50)
    return enough - requests


def _in_tokens(needed: int | None, arm: Arm, requests: int) -> int | None:
    tokens = sum(reply.tokens or 0 for one in arm.passes for reply in one.replies)
    return None if needed is None or not tokens else max(1, -(-needed * tokens // requests))


def _says(outcome: Outcome, kinds: Counter[str], requests: int, stock_failed: int, stock_requests: int) -> str:
    of_kind = f" ({', '.join(f'{count} {kind}' for kind, count in kinds.most_common())})" if kinds else ""
    says = f"{kinds.total()} of {requests} requests failed{of_kind}, {stock_failed} of {stock_requests} on stock"
    if outcome == "different":
        return f"{says}: more than chance makes of equal servers"
    return says if outcome == "equivalent" else f"{says}: too few requests to tell"
