"""What all tokens together say against the candidate: the e-process over named alternatives, in total and in strata.

It alone calls nothing different: a numerical floor that both servers share would. Together with a gap to stock on equal
numbers of tokens it does (gates.decision, and of_strata here). Until that gap is found, what stock's own tokens do not
look like is no equivalence either (gates.unsettled).
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from gates import oracles, sequential, strata, tokens
from gates.alternatives import Alternative
from gates.checks import first_choice, likelihood
from gates.eprocess import log_mean_exp
from gates.evidence import Evidence
from gates.finding import Estimate, Finding
from gates.plan import Plan
from gates.residual_check import METHOD_AGAINST_STOCK, sampled_otherwise
from gates.residuals import Floats, Residuals, matched
from gates.sequential import Sums
from gates.strata import Stratum
from gates.tokens import Tokens

EXCUSABLE = ("temperature", "greedy")
"""Families whose size the margins bound: inside every one of them they do not matter."""

GAPS = {
    "likelihood": "likelihood",
    "first_choice_weighted": "first_choice",
    "tail": "tail",
    "junk": "junk",
    "junk_weighted": "junk",
}
"""statistic → the check that it belongs to"""

BY_TOKENS = (*GAPS.values(), "pit", "oracle")

TUNED_TO = {
    "likelihood": 0.025,
    "first_choice_weighted": 0.025,
    "tail": 0.25,
    "junk": 0.25,
    "junk_weighted": 5.0,
    "oracle": 0.5,
}
"""Of the statistic's variance a token: where its sequence is tightest. An oracle's mean moves by about all of it, where
a share of oracles.OF_THE_SEQUENCE of the tokens is the oracle's."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a stratum in which the e-process rejects. contained: whether the gap to stock there is known to lie
    inside every margin that a profile is held to."""

    stratum: Stratum
    index: int
    likeliest: Alternative
    contained: bool

    @property
    def name(self) -> str:
        return strata.LEVELS[self.stratum][self.index]

    @property
    def excusable(self) -> bool:
        return self.contained and self.likeliest.family in EXCUSABLE


@dataclass(frozen=True, slots=True)
class Suspected:
    """profiles: those (None: all tokens) in which the e-process rejects. levels: of the other strata."""

    profiles: frozenset[str | None]
    levels: tuple[Level, ...]
    log_e: float
    likeliest: Alternative | None  # None where nothing rejects

    @property
    def excusable(self) -> bool:
        return self.likeliest is None or self.likeliest.family in EXCUSABLE

    @property
    def says(self) -> str | None:
        if self.likeliest is None:
            return None
        return f"looks like {self.likeliest.says}"

    @property
    def unbounded(self) -> "tuple[Alternative, Level | None] | None":
        """What no margin bounds, and where (None: in all tokens): a fault of another family, or one in a stratum that
        may lie beyond them there."""
        if self.likeliest is not None and self.profiles and not self.excusable:
            return self.likeliest, None
        return next(((one.likeliest, one) for one in self.levels if not one.excusable), None)


def suspected(evidence: Evidence, alpha: float, alpha_strata: float, plan: Plan) -> Suspected:
    """alpha: of the e-process over all tokens; alpha_strata: of all the plan's strata together."""
    if any(sampled_otherwise(evidence, profile) for profile in evidence.profiles):
        return Suspected(frozenset(), (), 0.0, None)
    own = tokens.of(evidence.candidate)
    of_one = math.log(max(1, len(plan.strata)) / alpha_strata)
    profiles: set[str | None] = {None} if own.evidence.rejects(alpha) else set()
    levels: list[Level] = []
    totals = [own.evidence.totals] if profiles else []
    for stratum in plan.strata:
        # Levels not seen so far have E = 1, and count: a number of levels that grew with the data would be no mean.
        sums = _of_profiles(own, evidence) if stratum == "profile" else own.of_strata[stratum].log_ratios
        log_e = log_mean_exp(sums)
        if not len(log_e) or log_mean_exp(log_e[None, :])[0] < of_one:
            continue
        most = int(np.argmax(log_e))
        totals.append(sums[most])
        if stratum == "profile":
            profiles.add(evidence.profiles[most])
        else:
            contained = _contained(evidence, stratum, most, plan)
            levels.append(Level(stratum, most, own.alternatives[int(np.argmax(sums[most]))], contained))
    # By all tokens where they reject, else by the first stratum that does.
    likeliest = own.alternatives[int(np.argmax(totals[0]))] if totals else None
    return Suspected(frozenset(profiles), tuple(levels), own.evidence.log_sup, likeliest)


def _of_profiles(own: Tokens, evidence: Evidence) -> Floats:
    nothing = np.zeros(len(own.alternatives))
    return np.array([own.of_profiles.get(name, nothing) for name in evidence.profiles])


def _contained(evidence: Evidence, stratum: Stratum, level: int, plan: Plan) -> bool:
    """A fault confined to this level would vanish in the mean of all tokens, which so says nothing of its size."""
    own, stock = tokens.of(evidence.candidate), tokens.of(evidence.stock)
    margins = _margins(plan)
    for statistic, margin in margins.items():
        pair = matched_at(own, stock, statistic, stratum, level)
        if pair is None:
            return False
        candidate, other = (sequential.sums(part) for part in pair)
        if min(candidate.replies, other.replies) < plan.profile_replies:
            return False
        most = margin(candidate)
        if not sequential.gap(candidate, other, most, 1 - plan.level_equivalent).inside(most):
            return False
    return bool(margins)


def _margins(plan: Plan) -> dict[str, Callable[[Sums], float]]:
    """statistic → (sums) → what a profile's gap of it may be, a token."""
    found: dict[str, Callable[[Sums], float]] = {}
    for settings in (plan.required | plan.if_available).values():
        if isinstance(settings, likelihood.Settings):
            found["likelihood"] = partial(_share_of_variance, settings.profile_margin_temperature)
        elif isinstance(settings, first_choice.Settings):
            found["first_choice"] = partial(_constant, settings.profile_margin)
    return found


def _share_of_variance(share: float, sums: Sums) -> float:
    return share * sums.variance


def _constant(share: float, sums: Sums) -> float:
    return share


def of_strata(evidence: Evidence, found: Suspected, alpha: float, plan: Plan) -> list[Finding]:
    """Different in the strata that reject, where there is a gap to stock too. alpha: of each statistic's gaps, and of
    all oracles' together."""
    own, stock = tokens.of(evidence.candidate), tokens.of(evidence.stock)
    findings = []
    for level in found.levels:
        of_one = alpha / (max(1, len(plan.strata)) * len(strata.LEVELS[level.stratum]))
        of_oracle = of_one / max(1, len(own.oracles))
        spent = {statistic: (check, of_one) for statistic, check in GAPS.items()}
        spent |= {oracles.statistic(name): ("oracle", of_oracle) for name in own.oracles}
        for statistic, (check, of_each) in spent.items():
            pair = matched_at(own, stock, statistic, level.stratum, level.index)
            finding = None if pair is None else _gap(pair, statistic, check, level, of_each)
            if finding is not None:
                findings.append(finding)
    return findings


def matched_at(
    own: Tokens, stock: Tokens, statistic: str, stratum: Stratum, level: int
) -> tuple[Residuals, Residuals] | None:
    """Equal numbers of tokens of the level; where stock has none of it (chunks of one token), of all its tokens."""
    candidate = _at(own, statistic, stratum, level)
    other = _at(stock, statistic, stratum, level)
    return matched(candidate, {name: other.get(name, part) for name, part in stock.residuals[statistic].items()})


def _at(arm: Tokens, statistic: str, stratum: Stratum, level: int) -> dict[str, Residuals]:
    found = {}
    for profile, part in arm.residuals[statistic].items():
        inside = arm.levels[stratum][profile] == level
        if inside.any():
            found[profile] = Residuals(part.d[inside], part.v[inside], part.reply[inside])
    return found


def _gap(pair: tuple[Residuals, Residuals], statistic: str, check: str, level: Level, alpha: float) -> Finding | None:
    own, stock = (sequential.sums(part) for part in pair)
    interval = sequential.gap(
        own, stock, max(TUNED_TO[statistic if check != "oracle" else check] * own.variance, 1e-9), alpha
    )
    if not interval.excludes_zero:
        return None
    estimate = Estimate(
        value=interval.value,
        low=interval.low,
        high=interval.high,
        level=1 - alpha,
        n=own.n,
        unit="nat a token" if statistic in ("likelihood", "junk_weighted") or check == "oracle" else "share of tokens",
        method=METHOD_AGAINST_STOCK,
    )
    return Finding(
        check=check,
        stratum=level.name,
        required=False,
        outcome="different",
        estimate=estimate,
        says=f"unlike the stock model, and unlike stock's own replies, at {level.name}: like {level.likeliest.says}",
    )


def excused(findings: list[Finding], found: Suspected) -> list[Finding]:
    """A fault of an excusable family that lies inside every margin does not matter, by whatever check it was found.

    One that was found in a stratum must lie inside them in that stratum too.
    """
    bounded = [one for one in findings if one.required and one.stratum is None and one.margin is not None]
    named = [one for one in bounded if one.check in ("likelihood", "first_choice")]
    if found.likeliest is None or not found.excusable or not named:
        return findings
    if any(one.outcome != "equivalent" for one in named):
        return findings
    confined = {level.name for level in found.levels if not level.excusable}
    return [_forgiven(one) if _forgivable(one, confined) else one for one in findings]


def _forgivable(finding: Finding, confined: Collection[str]) -> bool:
    of_tokens = finding.check in BY_TOKENS  # replies that are copies of each other, say, no margin bounds
    return of_tokens and finding.outcome == "different" and finding.margin is None and finding.stratum not in confined


def _forgiven(finding: Finding) -> Finding:
    says = f"measurably different from stock, and of no size that matters: {finding.says}"
    return finding.model_copy(update={"outcome": "passed", "immaterial": True, "says": says})
