"""Do tokens come from the far end of their distributions as often as they should? Truncation (top_p, min_p) cuts it."""

from gates import tokens
from gates.checks import Checked, CheckSettings, Terms
from gates.decision import Decision
from gates.evidence import Arm, Evidence
from gates.finding import Finding
from gates.residual_check import Question, examine
from gates.sequential import Sums

SEQUENCES = 1
P_VALUES = 1

TUNED_TO = 0.0025
"""Share of all tokens at which the sequence is tightest: a third of what usually lies there."""


class Settings(CheckSettings):
    """It has no margin: it may reject, and passes otherwise."""


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    def margin(sums: Sums, of_profile: bool) -> float:
        return TUNED_TO

    question = Question("tail", "share of tokens", ["tail"], margin, _says, bounded=False)
    pooled, *others = examine(question, evidence, terms).findings
    if pooled.estimate is not None:
        own, stock = (_count(arm, evidence) for arm in (evidence.candidate, evidence.stock))
        pooled = _by_count(pooled, own, stock, terms)
    return Checked([pooled, *others])


def _count(arm: Arm, evidence: Evidence) -> tuple[int, float]:
    """(tokens in the tail, tokens expected there)."""
    parts = tokens.by_profile(arm, evidence.profiles, "tail").values()
    hits = sum(int((part.d > 0).sum()) for part in parts)
    return hits, hits - sum(float(part.d.sum()) for part in parts)


def _by_count(finding: Finding, own: tuple[int, float], stock: tuple[int, float], terms: Terms) -> Finding:
    """The exact test of too few: where truncation leaves none, it needs the fewest tokens of all."""
    if p_value(own, stock) > terms.p_value:
        return finding
    says = (
        f"{own[0]} tokens from the last 1.5 % of their distributions, where the stock model makes {own[1]:.0f}: "
        f"as by truncation (top_p, min_p) or a lower temperature"
    )
    return finding.model_copy(update={"outcome": "different", "says": says})


def p_value(own: tuple[int, float], stock: tuple[int, float]) -> float:
    """That too few came by the reference, and by stock: each must say so.

    "By the reference, while stock has enough" is a race, which two equal servers over one numerical floor lose.
    """
    return max(too_few(*own), too_few_against(own, stock))


def too_few(hits: int, expected: float) -> float:
    """P(N ≤ hits), N Poisson: exact e^−expected for none, and never less than the law of a sum of rare events."""
    from scipy.special import pdtr

    return float(pdtr(hits, expected)) if expected > 0 else 1.0


def too_few_against(own: tuple[int, float], stock: tuple[int, float]) -> float:
    """Given the two counts' sum, the smaller share is binomial with the share of what was expected."""
    from scipy.special import bdtr

    total = own[0] + stock[0]
    return float(bdtr(own[0], total, own[1] / (own[1] + stock[1]))) if total and own[1] > 0 else 1.0


def _says(decision: Decision) -> str:
    interval = decision.measured.interval
    within = f"{100 * max(abs(interval.low), abs(interval.high)):.2g} % of all tokens"
    if decision.outcome != "different":
        return f"as many tokens from the far end of their distributions as the stock model makes, within {within}"
    often = "more" if interval.value > 0 else "fewer"
    return f"{often} tokens from the far end of their distributions than the stock model makes"
