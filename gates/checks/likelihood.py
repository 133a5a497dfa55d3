"""Are the candidate's tokens as likely under the reference as the reference's own would be? Finds most faults."""

from pydantic import Field

from gates.checks import Checked, CheckSettings, Terms
from gates.decision import Decision
from gates.evidence import Evidence
from gates.residual_check import Question, examine
from gates.sequential import Interval, Sums

SEQUENCES = 1
P_VALUES = 0


class Settings(CheckSettings):
    """Margins on temperature: a relative error of .025 is T = .975 or 1.026.

    The residual a nat of variance estimates 1/T − 1, so the margin in nat a token is this share of the variance.
    """

    margin_temperature: float = Field(default=0.025, gt=0)
    profile_margin_temperature: float = Field(default=0.075, gt=0)


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    def margin(sums: Sums, of_profile: bool) -> float:
        return (settings.profile_margin_temperature if of_profile else settings.margin_temperature) * sums.variance

    question = Question("likelihood", "nat a token", ["likelihood"], margin, _says)
    return examine(question, evidence, terms)


def _says(decision: Decision) -> str:
    variance, interval = decision.measured.own.variance, decision.measured.interval
    if variance == 0:
        return "the reference is sure of every token, so likelihood says nothing"
    if decision.outcome == "different":
        return f"replies are {_likelier(interval.value)} than the stock model makes them: {_like(interval, variance)}"
    error = max(abs(interval.low), abs(interval.high)) / variance
    if decision.outcome == "equivalent":
        return f"like a temperature error under {_percent(error)}"
    if interval.excludes_zero:
        return f"replies look {_likelier(interval.value)} than the stock model makes them, and it is not proven yet"
    return f"consistent with the same model and with a temperature error of {_percent(error)}"


def _likelier(value: float) -> str:
    return "likelier" if value > 0 else "less likely"


def _like(interval: Interval, variance: float) -> str:
    """A temperature only near 1, where the score test's line holds; beyond, several faults look alike."""
    slope = 1 + interval.value / variance
    if 0.85 <= slope <= 1.2:
        return f"as if sampled at temperature ≈ {1 / slope:.2f}"
    if slope > 1:
        return "as by a much lower temperature, truncation (top_p, top_k, min_p), or a preference for likely tokens"
    return "as by a much higher temperature, another model, or corruption"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
