"""Do tokens come that the reference's likeliest leave no room for? More of them are corruption, fewer truncation."""

from gates.checks import Checked, CheckSettings, Terms
from gates.decision import Decision
from gates.evidence import Evidence
from gates.residual_check import Question, examine
from gates.sequential import Interval, Sums

SEQUENCES = 2
P_VALUES = 0

TUNED_TO = 0.001
"""Share of all tokens at which the sequence is tightest."""

WEIGHTED_TUNED_TO = 0.002
"""nat a token, which so many arbitrary tokens make."""


class Settings(CheckSettings):
    """It has no margin: it may reject, and passes otherwise."""


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    def margin(sums: Sums, of_profile: bool) -> float:
        return TUNED_TO

    question = Question(
        check="junk",
        unit="share of tokens",
        statistics=["junk", "junk_weighted"],
        margin=margin,
        says=_says,
        bounded=False,
        tuned_to={"junk_weighted": WEIGHTED_TUNED_TO},
    )
    return Checked(examine(question, evidence, terms).findings)


def _says(decision: Decision) -> str:
    interval = decision.measured.interval
    if decision.outcome != "different":
        return f"as many tokens beyond the listed likeliest as the stock model makes, within {_share(interval)}"
    if not interval.excludes_zero:
        (weighted,) = (measured.interval.value for measured in decision.beside)
        often = "too often: corruption" if weighted > 0 else "too seldom: as by truncation"
        return f"tokens beyond the listed likeliest come {often}, where the stock model is nearly sure of a listed one"
    if interval.value > 0:
        return f"{100 * interval.value:.2g} % of the tokens are ones that the stock model hardly ever makes: corruption"
    return "fewer tokens beyond the listed likeliest than the stock model makes: as by top_k or another truncation"


def _share(interval: Interval) -> str:
    return f"{100 * max(abs(interval.low), abs(interval.high)):.2g} %"
