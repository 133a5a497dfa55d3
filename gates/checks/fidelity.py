"""Are the log-probabilities that the candidate reports those of the stock model? Quantized or patched forward passes
are off, on fixed texts and in the decoding of ordinary replies.

The candidate is taken at its word here; what it samples is judged by the other checks.
"""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from gates.checks import Checked, CheckSettings, Terms, without_data
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding, Outcome
from gates.probes import own_logprobs, why_none
from gates.residuals import Floats
from loadgen.record import Probe

SEQUENCES = 0
P_VALUES = 2  # one a kind of text
PROBES: tuple[Probe, ...] = ("fixed_text", "logprobs")

METHOD = "mean absolute difference of log-probabilities of one token, t over runs of 16 tokens"

_KINDS: tuple[tuple[Probe, str], ...] = (("fixed_text", "fixed texts"), ("logprobs", "ordinary replies"))
_RUN = 16
"""Tokens averaged before the interval: neighbours' differences resemble each other."""

_FEWEST = 8  # runs
_OF_STOCK = 3.0


class Settings(CheckSettings):
    """The ceiling, nat a token, is `floor` or three times the upper bound of stock's own, whichever is more."""

    floor: float = Field(default=0.002, gt=0)


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    findings = [
        _finding(means, kind, settings.floor, terms)
        for probe, kind in _KINDS
        if (means := [_runs(arm, probe) for arm in evidence.arms]) and min(map(len, means)) >= _FEWEST
    ]
    return Checked(findings) if findings else without_data("fidelity", terms, _missing(evidence))


def _finding(means: Sequence[Floats], kind: str, floor: float, terms: Terms) -> Finding:
    stock, own = (_estimate(runs, terms.equivalent) for runs in means)
    assert stock.high is not None and own.high is not None
    ceiling = max(floor, _OF_STOCK * stock.high)
    outcome: Outcome = "undecided"
    if own.high <= ceiling:
        outcome = "equivalent"
    elif p_above(means[1], ceiling) <= terms.p_value:
        outcome = "different"
    return Finding(
        check="fidelity",
        stratum=kind,
        required=terms.required,
        outcome=outcome,
        estimate=own,
        stock=stock,
        margin=ceiling,
        says=_says(outcome, own, kind),
    )


def differences(arm: Arm, probe: Probe) -> list[Floats]:
    """|own − reference's| of each token of each record, in nat; tokens that one of the two does not know left out."""
    probed, found = arm.probed(probe), []
    for record in probed.records:
        own, rows = own_logprobs(record), probed.rows(record)
        if own is not None and len(rows):
            off = np.abs(own[: len(rows)] - rows["logprob"].astype(np.float64))
            found.append(off[np.isfinite(off)])
    return found


def _runs(arm: Arm, probe: Probe) -> Floats:
    """Means over _RUN tokens each, within records; what is left over at a record's end is left out."""
    parts = [off[: len(off) // _RUN * _RUN].reshape(-1, _RUN).mean(axis=1) for off in differences(arm, probe)]
    return np.concatenate(parts) if parts else np.empty(0)


def _estimate(runs: Floats, level: float) -> Estimate:
    from scipy.special import stdtrit

    n, value = len(runs), float(runs.mean())
    reach = float(stdtrit(n - 1, (1 + level) / 2)) * float(runs.std(ddof=1)) / math.sqrt(n)
    return Estimate(
        value=value,
        low=max(value - reach, 0.0),
        high=value + reach,
        level=level,
        n=n * _RUN,
        unit="nat a token",
        method=METHOD,
    )


def p_above(runs: Floats, ceiling: float) -> float:
    """One-sided P of so large a mean where the true one is no more than the ceiling.

    By t on the logarithms of the runs' means, which are nearer to normal; E log X ≤ log E X, so P is never too small
    for that.
    """
    from scipy.special import stdtr

    logs = np.log(np.maximum(runs, 1e-12))
    spread = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    off = float(logs.mean()) - math.log(ceiling)
    return float(stdtr(len(logs) - 1, -off / spread)) if spread > 0 else float(off <= 0)


def _says(outcome: Outcome, own: Estimate, kind: str) -> str:
    says = f"on {kind} the reported log-probabilities are {own.value:.2g} nat off the stock model's"
    if outcome == "different":
        return f"{says}: another forward pass, as of a quantized model"
    return says if outcome == "equivalent" else f"{says}, by too few tokens to tell"


def _missing(evidence: Evidence) -> str:
    """Either kind of text would do."""
    for arm in evidence.arms:
        whys = [why_none(arm.label, arm.probed(probe), probe) for probe, _ in _KINDS]
        if all(whys):
            return str(whys[0])
        if not any(len(off) for probe, _ in _KINDS for off in differences(arm, probe)):
            return f"{arm.label} reports no log-probabilities of its own"
    return f"fewer than {_FEWEST * _RUN} tokens have log-probabilities of both"
