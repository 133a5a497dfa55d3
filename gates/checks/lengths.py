"""How long the candidate's replies are against stock's to the same prompts. Describes; decides nothing."""

import math

import numpy as np

from gates.checks import Checked, CheckSettings, Terms
from gates.evidence import Evidence, Pass
from gates.finding import Estimate, Finding
from gates.residuals import Floats

SEQUENCES = 0
P_VALUES = 0


class Settings(CheckSettings):
    """None: it has no margin."""


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    return Checked([_finding(evidence, profile, terms) for profile in (None, *evidence.profiles)])


def _finding(evidence: Evidence, profile: str | None, terms: Terms) -> Finding:
    estimate = ratio(*_lengths(evidence, profile), paired=evidence.paired, level=terms.equivalent)
    missing = None
    says = "fewer than two prompts have whole replies of known length on both endpoints"
    if estimate is None:
        missing = says
    else:
        says = f"replies are {estimate.value:.2f}× as long as stock's; described, not judged"
    # Without a margin nothing can be called equivalent.
    return Finding(
        check="lengths",
        profile=profile,
        required=terms.required,
        outcome="undecided",
        estimate=estimate,
        missing=missing,
        says=says,
    )


def _lengths(evidence: Evidence, profile: str | None) -> tuple[Floats, Floats]:
    """(candidate's, stock's) tokens of whole replies; where prompts are shared, of those that both served."""
    candidate = _whole(evidence.candidate.of(profile))
    stock = _whole(evidence.stock.of(profile))
    if not evidence.paired:
        return np.array(list(candidate.values()), float), np.array(list(stock.values()), float)
    both = [prompt for prompt in candidate if prompt in stock]
    return (
        np.array([candidate[prompt] for prompt in both], float),
        np.array([stock[prompt] for prompt in both], float),
    )


def _whole(passes: list[Pass]) -> dict[tuple[str, int, str], int]:
    return {
        (one.profile, one.pass_no, reply.prompt_id): reply.tokens
        for one in passes
        for reply in one.replies
        if reply.failure is None and reply.tokens is not None
    }


def ratio(candidate: Floats, stock: Floats, *, paired: bool, level: float) -> Estimate | None:
    """Ratio of the mean lengths; interval by the delta method on its logarithm. None where there are under two."""
    from scipy.stats import norm

    if min(len(candidate), len(stock)) < 2 or not candidate.sum() or not stock.sum():
        return None
    relative, relative_stock = candidate / candidate.mean(), stock / stock.mean()
    if paired:
        variance = (relative - relative_stock).var(ddof=1) / len(relative)
    else:
        variance = relative.var(ddof=1) / len(relative) + relative_stock.var(ddof=1) / len(relative_stock)
    value = float(candidate.mean() / stock.mean())
    factor = math.exp(float(norm.ppf((1 + level) / 2)) * math.sqrt(variance))
    return Estimate(
        value=value,
        low=value / factor,
        high=value * factor,
        level=level,
        n=len(candidate),
        unit="ratio",
        method=f"ratio of means, {'paired by prompt' if paired else 'not paired'}, delta method on the log",
    )
