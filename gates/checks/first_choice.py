"""Is the reference's likeliest token picked as often as it should? Finds relaxed acceptance and greedy mixing."""

from pydantic import Field

from gates.checks import Checked, CheckSettings, Terms
from gates.decision import Decision, Measured
from gates.evidence import Evidence
from gates.residual_check import Question, examine
from gates.sequential import Sums

SEQUENCES = 2
P_VALUES = 0


class Settings(CheckSettings):
    """Margins as a share of all tokens."""

    margin: float = Field(default=0.01, gt=0, lt=1)
    profile_margin: float = Field(default=0.03, gt=0, lt=1)


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    def margin(sums: Sums, of_profile: bool) -> float:
        return settings.profile_margin if of_profile else settings.margin

    statistics = ["first_choice", "first_choice_weighted"]
    return examine(Question("first_choice", "share of tokens", statistics, margin, _says), evidence, terms)


def _says(decision: Decision) -> str:
    return "; ".join([_plain(decision), *(_weighted(measured) for measured in decision.beside)])


def _weighted(measured: Measured) -> str:
    """A mixture with greedy decoding moves the weighted figure by its share of the variance, exactly."""
    variance, interval = measured.own.variance, measured.interval
    if variance == 0:
        return "no position leaves a choice"
    value, low, high = (100 * bound / variance for bound in (interval.value, interval.low, interval.high))
    return f"like {value:+.1f} % of tokens decoded greedily ({low:+.1f} … {high:+.1f})".replace("-", "−")


def _plain(decision: Decision) -> str:
    interval = decision.measured.interval
    often = "more" if interval.value > 0 else "less"
    if decision.outcome == "different" and not interval.excludes_zero:
        return "picks its likeliest token otherwise than the stock model where several are likely"
    if decision.outcome == "different":
        return f"picks its likeliest token {often} often than the stock model does, by {_points(interval.value)}"
    error = _points(max(abs(interval.low), abs(interval.high)))
    if decision.outcome == "equivalent":
        return f"picks its likeliest token as often as stock, within {error}"
    if interval.excludes_zero:
        return f"seems to pick its likeliest token {often} often than the stock model does, and it is not proven yet"
    return f"consistent with the same model and with {error} more or fewer first choices"


def _points(share: float) -> str:
    return f"{100 * abs(share):.1f} points"
