"""Do tokens fall evenly over their distributions? The omnibus check, for what no other was made to find."""

import math

from gates import tokens
from gates.checks import Checked, CheckSettings, Terms
from gates.evidence import Evidence
from gates.finding import Estimate, Finding
from gates.pit import LEAST_ENTROPY, TERMS, Uniformity
from gates.residual_check import sampled_otherwise

SEQUENCES = 0
P_VALUES = 1

METHOD = f"Neyman's smooth test of the randomised PIT, {TERMS} Legendre terms, positions over {LEAST_ENTROPY} nat"
LEAST_TOKENS = 1000
"""At fewer open positions χ² has too light a tail at the level of this check: 1.2 times too many are rejected at 500, 3
times at 50, 50 times at 2 (simulated at 6e-5)."""


class Settings(CheckSettings):
    """It has no margin: it may reject, and passes otherwise."""


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    own, stock = (tokens.of(arm).uniformity for arm in (evidence.candidate, evidence.stock))
    if (why := _missing(evidence, own, stock)) is not None:
        return Checked(
            [Finding(check="pit", required=terms.required, outcome="undecided", missing=why, says=f"no data: {why}")]
        )
    if (fewest := min(own.n, stock.n)) < LEAST_TOKENS:
        return _too_few(evidence, fewest, terms)
    rejects = p_value(own, stock) <= terms.p_value
    finding = Finding(
        check="pit",
        required=terms.required,
        outcome="different" if rejects else "passed",
        estimate=_estimate(own),
        stock=_estimate(stock),
        says=_says(own, stock, terms.p_value),
    )
    return Checked([finding])


def _says(own: Uniformity, stock: Uniformity, level: float) -> str:
    chance = p_value(own, stock)
    if chance <= level:
        return f"tokens do not fall evenly over the reference's distributions, nor as stock's own do (p = {chance:.1g})"
    if own.p_value <= level:
        says = "tokens do not fall evenly over the reference's distributions, nor surely otherwise than stock's own"
        return f"{says} (p = {chance:.1g})"
    return f"tokens fall as evenly over the reference's distributions as they should (p = {own.p_value:.2g})"


def p_value(own: Uniformity, stock: Uniformity) -> float:
    """That tokens fall neither evenly nor as stock's own do: each must say so.

    "Not evenly, while stock's look even" is a race: two equal servers whose reference is a little off (temperature
    .985, scorer noise .3) lose it in 3 of 100 looks at 200,000 tokens each.
    """
    return max(own.p_value, own.p_against(stock))


def _too_few(evidence: Evidence, fewest: int, terms: Terms) -> Checked:
    says = (
        f"too few tokens to tell: {fewest:,} were scored at positions that leave a choice, {LEAST_TOKENS:,} are needed"
    )
    finding = Finding(check="pit", required=terms.required, outcome="undecided", says=says)
    scored = sum(len(one.scored.rows) for one in evidence.candidate.passes)
    return Checked([finding], math.ceil(scored * (LEAST_TOKENS - fewest) / fewest))


def _missing(evidence: Evidence, own: Uniformity, stock: Uniformity) -> str | None:
    for profile in evidence.profiles:
        if (why := sampled_otherwise(evidence, profile)) is not None:
            return why
    for arm, found in ((evidence.candidate, own), (evidence.stock, stock)):
        if not found.n:
            return f"no token of {arm.label} was scored at a position that leaves a choice"
    return None


def _estimate(found: Uniformity) -> Estimate:
    """The size of the departure: root of the summed squares of the terms' means; about √(4/n) by chance alone."""
    value = math.sqrt(float((found.sums**2).sum())) / found.n
    return Estimate(value=value, low=None, high=None, level=0.95, n=found.n, unit="standard deviations", method=METHOD)
