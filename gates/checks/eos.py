"""Do replies stop as readily as they should? Finds shorter or longer replies, whichever prompts came."""

from pydantic import Field

from gates.checks import Checked, CheckSettings, Terms, without_data
from gates.decision import Decision
from gates.evidence import Evidence
from gates.finding import Finding
from gates.residual_check import Question, examine
from gates.sequential import Sums

SEQUENCES = 1
P_VALUES = 0

NO_END = "no token id is known to end a reply: few replies stopped by themselves, or the server's ids leave the end out"
TEXT_HAS_NO_END = "a server returned text alone, and the end of a reply has no text"


class Settings(CheckSettings):
    """Margin on the hazard ratio: .25 means that ends come between .75 and 1.25 times as readily as stock's.

    About 14/.25² = 220 stops settle it; .1 needs 1,400.
    """

    margin_ratio: float = Field(default=0.25, gt=0, lt=1)


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    if not evidence.stock.eos:
        return without_data("eos", terms, TEXT_HAS_NO_END if evidence.by_text else NO_END)

    def margin(sums: Sums, of_profile: bool) -> float:
        return (3 if of_profile else 1) * settings.margin_ratio * sums.variance

    def expected(sums: Sums) -> float:
        return sums.variance or 1.0

    question = Question("eos", "share of stops", ["eos"], margin, _says, scale=expected)
    return Checked(*_pooled_only(examine(question, evidence, terms)))


def _pooled_only(checked: Checked) -> tuple[list[Finding], int | None]:
    """A profile has too few ends to ask it for equivalence; it may be different."""
    first, *others = checked.findings
    return [first, *(one for one in others if one.outcome == "different")], checked.needs_tokens


def _says(decision: Decision) -> str:
    measured = decision.measured
    ratio = 1 + measured.interval.value / measured.own.variance if measured.own.variance else 1.0
    if decision.outcome == "different":
        return f"replies end {ratio:.2f} times as readily as the stock model's: {'shorter' if ratio > 1 else 'longer'}"
    if decision.outcome == "equivalent":
        return f"replies end {ratio:.2f} times as readily as the stock model's"
    return f"replies end {ratio:.2f} times as readily as the stock model's, by too few ends to tell"
