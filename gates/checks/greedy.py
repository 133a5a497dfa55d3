"""At temperature 0, does the candidate ever take a token that is clearly not the likeliest?

Near-ties go either way with the order of a sum, so a token counts only from a gap that stock's own replies hardly ever
show; and replies count, not tokens, since after one other token the two texts have nothing in common any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gates.checks import Checked, CheckSettings, Terms, without_data
from gates.checks.failures import bounds, p_more
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding
from gates.probes import why_none
from gates.residuals import Floats
from gates.scored import LEAST_LOGPROB
from loadgen.record import Probe

SEQUENCES = 0
P_VALUES = 1
PROBES: tuple[Probe, ...] = ("greedy",)

METHOD = "replies at temperature 0 with a token clearly below the likeliest; exact bounds (Clopper–Pearson)"

_LEAST_NAT = 0.05
_QUANTILE = 0.999


class Settings(CheckSettings):
    """It has no margin: it may reject, and passes otherwise."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of replies to the same prompts: `same` of `replies` are wholly alike; of `tokens` of the shorter ones, `before`
    come before the first that differs."""

    same: int
    replies: int
    before: int
    tokens: int


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    for arm in evidence.arms:
        if (why := why_none(arm.label, arm.probed("greedy"), "greedy")) is not None:
            return without_data("greedy", terms, why)
    gaps = [gaps_below(arm) for arm in evidence.arms]
    least = threshold(gaps[0])
    (stock, of_stock), (own, of_own) = ((violating(found, least), len(found)) for found in gaps)
    rejects = p_more(own, of_own, stock, of_stock) <= terms.p_value
    finding = Finding(
        check="greedy",
        required=terms.required,
        outcome="different" if rejects else "passed",
        estimate=_estimate(own, of_own, terms.equivalent),
        stock=_estimate(stock, of_stock, terms.equivalent),
        says=_says(own, of_own, least, agreement(evidence)),
    )
    return Checked([finding])


def gaps_below(arm: Arm) -> list[Floats]:
    """Of every scored reply: log p_max − log p of its tokens, in nat; infinite for one of no chance at all."""
    probed = arm.probed("greedy")
    found = []
    for record in probed.records:
        rows = probed.rows(record)
        if len(rows):
            logp, own = rows["logprobs"].astype(np.float64), rows["logprob"].astype(np.float64)
            # What a reference lists without the token drawn says that this is at most as likely as the last listed.
            least = np.where(logp > LEAST_LOGPROB, logp, np.inf).min(axis=1)
            among = (rows["ids"] == rows["token_id"][:, None]).any(axis=1)
            found.append(logp[:, 0] - np.where(np.isnan(own), np.where(among, logp[:, 0], least), own))
    return found


def threshold(stock: Sequence[Floats]) -> float:
    """The gap that one in a thousand of stock's own tokens reaches, and never a near-tie's."""
    return max(_LEAST_NAT, float(np.quantile(np.concatenate(stock), _QUANTILE, method="higher")))


def violating(gaps: Sequence[Floats], least: float) -> int:
    return sum(bool((found > least).any()) for found in gaps)


def agreement(evidence: Evidence) -> Agreement:
    """How alike the two endpoints' replies are."""
    stock, own = (
        {record.prompt_id: record.token_ids for record in arm.probed("greedy").records if record.token_ids}
        for arm in evidence.arms
    )
    both = [(ids, stock[prompt_id]) for prompt_id, ids in own.items() if prompt_id in stock]
    shorter = [min(len(ours), len(theirs)) for ours, theirs in both]
    return Agreement(
        same=sum(ours == theirs for ours, theirs in both),
        replies=len(both),
        before=sum(_alike(ours, theirs) for ours, theirs in both),
        tokens=sum(shorter),
    )


def _alike(ours: Sequence[int], theirs: Sequence[int]) -> int:
    differing = (i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
    return next(differing, min(len(ours), len(theirs)))


def _estimate(replies: int, of: int, level: float) -> Estimate:
    low, high = bounds(replies, of, level)
    return Estimate(
        value=replies / of,
        low=low,
        high=high,
        level=2 * level - 1,
        n=of,
        unit="share of replies",
        method=METHOD,
    )


def _says(own: int, of_own: int, least: float, alike: Agreement) -> str:
    says = f"{own} of {of_own} replies at temperature 0 hold a token {least:.2g} nat or more below the likeliest"
    share = alike.before / alike.tokens if alike.tokens else 0.0
    same = f"{alike.same} of {alike.replies} are stock's word for word"
    return f"{says}; {same}, {share:.0%} of the tokens come before a first difference"
