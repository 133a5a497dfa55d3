"""Does the candidate's engine stay within the device memory that it may use?"""

from pydantic import Field

from gates.checks import Checked, CheckSettings, Terms
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding, Outcome

SEQUENCES = 0
P_VALUES = 0


class Settings(CheckSettings):
    """Allowed are utilization × the device's memory + slack_mib. What stock was started with goes first."""

    utilization: float = Field(default=0.9, gt=0, le=1)
    slack_mib: float = Field(default=4096, ge=0)


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    peak, stock_peak = _largest(evidence.candidate, "peak_mib"), _largest(evidence.stock, "peak_mib")
    total = _largest(evidence.candidate, "total_mib")
    if peak is None or total is None:
        why = "the device memory of the candidate's server is not known"
        return Checked(
            [Finding(check="memory", required=terms.required, outcome="undecided", missing=why, says=f"no data: {why}")]
        )
    allowed = (_largest(evidence.stock, "utilization") or settings.utilization) * total + settings.slack_mib
    finding = Finding(
        check="memory",
        required=terms.required,
        outcome=_outcome(peak, stock_peak, allowed),
        estimate=_estimate(peak),
        stock=None if stock_peak is None else _estimate(stock_peak),
        margin=allowed,
        says=_says(peak, stock_peak, allowed),
    )
    return Checked([finding])


def _outcome(peak: float, stock_peak: float | None, allowed: float) -> Outcome:
    if peak <= allowed:
        return "equivalent"
    return "different" if stock_peak is None or stock_peak <= allowed else "undecided"


def _says(peak: float, stock_peak: float | None, allowed: float) -> str:
    says = f"{peak / 1024:.1f} GiB at the peak, {allowed / 1024:.1f} GiB allowed"
    if _outcome(peak, stock_peak, allowed) == "undecided":
        return f"{says}; stock itself is above what is allowed, so the limit does not fit the set-up"
    return says


def _largest(arm: Arm, name: str) -> float | None:
    seen = [values[name] for values in arm.values("memory") if values.get(name) is not None]
    return max(seen) if seen else None


def _estimate(peak: float) -> Estimate:
    return Estimate(value=peak, low=peak, high=peak, level=1.0, n=1, unit="MiB", method="largest sample seen")
