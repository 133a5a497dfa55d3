"""The candidate's tokens look like a fault that no margin bounds, and the gap to stock does not yet say so.

The e-process alone calls nothing different, for a numerical floor that both servers share would have it reject too. But
where stock's own tokens give it nothing, "equivalent" would be said against odds of thousands to one: the verdict waits
for the gap. Under a lossless candidate that happens by chance in alpha of the runs at most, and costs them tokens only.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from gates import rejection, sequential, tokens
from gates.evidence import Evidence
from gates.finding import Finding
from gates.rejection import BY_TOKENS, GAPS, Level, Suspected
from gates.residuals import matched

_ANSWERS = {"temperature": "likelihood", "greedy": "first_choice", "junk": "junk", "top_k": "junk"}
"""family → the check whose gap is likely to find it; for the others it is the tail's"""


@dataclasses.dataclass(frozen=True, slots=True)
class Unsettled:
    """finding: what the check that answers for the fault says now. level: where the fault is; None: in all tokens."""

    finding: Finding
    level: Level | None

    def among(self, findings: Sequence[Finding]) -> list[Finding]:
        """In the place of what the check said for itself."""
        pooled = (self.finding.check, None, None)
        return [self.finding if (one.check, one.profile, one.stratum) == pooled else one for one in findings]


def unsettled(
    findings: Sequence[Finding],
    evidence: Evidence,
    found: Suspected,
    of_one: Callable[[Evidence], Suspected],
) -> Unsettled | None:
    """None where every fault that the tokens look like is settled: found, inside its margins, or shared by stock.

    findings: all there are. found: what of_one says of the evidence; it is asked of the other server's tokens too.
    """
    suspect = found.unbounded
    if suspect is None:
        return None
    likeliest, level = suspect
    of_tokens = [one for one in findings if one.check in BY_TOKENS]
    if any(one.outcome == "different" for one in of_tokens):
        return None
    pooled = [one for one in of_tokens if one.required and one.profile is None and one.stratum is None]
    answers = _ANSWERS.get(likeliest.family, "tail")
    finding = next((one for one in pooled if one.check == answers), pooled[0] if pooled else None)
    if finding is None:
        return None
    exchanged = dataclasses.replace(evidence, candidate=evidence.stock, stock=evidence.candidate)
    if of_one(exchanged).likeliest is not None:
        return None
    place = f" at {level.name}" if level is not None else ""
    says = (
        f"the tokens look like {likeliest.says}{place}, as stock's own do not, but so far the difference to stock may "
        "be chance"
    )
    return Unsettled(finding.model_copy(update={"outcome": "undecided", "says": says}), level)


def needs(evidence: Evidence, level: Level | None, alpha: float) -> int | None:
    """Further tokens until the gap of a statistic is typically found, by what has been measured; None where nothing of
    one shows. alpha: of each check's gaps."""
    wanted = [found for statistic in GAPS if (found := _of_statistic(evidence, statistic, level, alpha)) is not None]
    return min(wanted) if wanted else None


def _of_statistic(evidence: Evidence, statistic: str, level: Level | None, alpha: float) -> int | None:
    own, stock = tokens.of(evidence.candidate), tokens.of(evidence.stock)
    if level is None:
        pair = matched(own.residuals[statistic], stock.residuals[statistic])
    else:
        pair = rejection.matched_at(own, stock, statistic, level.stratum, level.index)
    if pair is None:
        return None
    one, other = (sequential.sums(part) for part in pair)
    off = abs(one.total - other.total) / one.n
    if off == 0:
        return None
    # As far as the sequence reaches where it is tightest: elsewhere it takes somewhat more.
    asked = sequential.reach(alpha) * (one.spread + other.spread) / one.n / off**2
    all_tokens = sum(len(part) for part in own.residuals[statistic].values())
    return max(1, math.ceil((asked - one.n) * all_tokens / one.n))
