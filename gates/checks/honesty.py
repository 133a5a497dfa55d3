"""Do the candidate's tokens come from the log-probabilities that it reports with them?

q̂ is what it reports. Under q̂ the product of r(x)/q̂(x) over its tokens is a test martingale for every law r that is
fixed before the token is seen: here the reference's p, and the named alternatives of q̂ itself (gates.alternatives),
half of the weight each. A server that samples at temperature .9 and reports the model's own figures is found by the
latter.
"""

import math
from dataclasses import dataclass

import numpy as np

from gates.alternatives import ALTERNATIVES, log_ratios
from gates.checks import Checked, CheckSettings, Terms, without_data
from gates.eprocess import log_mean_exp
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding
from gates.probes import Probed, key, own_logprobs, why_none
from gates.residuals import Floats, cells
from gates.scored import LEAST_LOGPROB, Rows
from loadgen.record import SCORE_DTYPE, SCORED_TOP_K, Probe, Record

SEQUENCES = 0
P_VALUES = 1
PROBES: tuple[Probe, ...] = ("logprobs",)

METHOD = "e-process on emitted tokens: the reference's law, and named alternatives, over the reported one"

_KEPT = 0.1
"""Share of q̂ in the reference's term: the two are of different passes of one model, and no noisy token ends it."""

_STOCK_OFF = math.log(100)


class Settings(CheckSettings):
    """It has no margin: it may reject, and passes otherwise."""


@dataclass(frozen=True, slots=True)
class Evidenced:
    """log_sup: the largest log E so far. likeliest: what the tokens look like. n: tokens."""

    log_sup: float
    likeliest: str
    n: int


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    own, stock = (evidenced(arm.probed("logprobs")) for arm in (evidence.candidate, evidence.stock))
    if not own.n:
        return without_data("honesty", terms, _missing(evidence.candidate))
    rejects = own.log_sup >= -math.log(terms.p_value)
    # Where stock's own are off too, it is how this engine reports (after its sampling settings, say).
    shared = stock.log_sup >= _STOCK_OFF
    return Checked(
        [
            Finding(
                check="honesty",
                required=terms.required,
                outcome="undecided" if rejects and shared else "different" if rejects else "passed",
                estimate=_estimate(own),
                stock=_estimate(stock) if stock.n else None,
                says=_says(own, rejects, shared),
            )
        ]
    )


def evidenced(probed: Probed) -> Evidenced:
    """Over all replies with log-probabilities, in the order of sending."""
    parts = [part for record in probed.records if (part := _log_ratios(record, probed.rows(record))) is not None]
    if not parts:
        return Evidenced(0.0, "", 0)
    sums = np.cumsum(np.concatenate(parts), axis=0)
    running = np.logaddexp(sums[:, 0], log_mean_exp(sums[:, 1:])) - math.log(2)
    named = ["the reference's own law", *(one.says for one in ALTERNATIVES)]
    return Evidenced(max(0.0, float(running.max())), named[int(np.argmax(sums[-1]))], len(sums))


def _log_ratios(record: Record, rows: Rows) -> Floats | None:
    """(n, 1 + J) of each token that was scored and has a reported log-probability."""
    own = own_logprobs(record)
    if own is None or not len(rows):
        return None
    own = own[: len(rows)]
    reference = rows["logprob"].astype(np.float64)
    known = np.isfinite(own) & np.isfinite(reference)
    first = np.log((1 - _KEPT) * np.exp(np.minimum(reference - own, 50)) + _KEPT)
    others = np.zeros((len(rows), len(ALTERNATIVES)))
    reported = as_rows(record, len(rows))
    listed = (reported["logprobs"] > LEAST_LOGPROB).any(axis=1)
    if listed.any():
        others[listed] = log_ratios(cells(reported[listed]))
    return np.concatenate([first[:, None], others], axis=1)[known]


def as_rows(record: Record, n: int) -> Rows:
    """What the server itself reports of its first n tokens, as scores are kept; −1 where it names no ids.

    The token drawn is listed beside as many of the likeliest as were asked for, so that only these are taken: else
    whether a token is listed would depend on its having been drawn.
    """
    most = min(asked_alternatives(record) or 0, SCORED_TOP_K)
    rows = np.zeros(n, SCORE_DTYPE)
    rows["request"], rows["position"] = key(record), np.arange(n)
    rows["token_id"] = (record.token_ids or [])[:n]
    rows["ids"], rows["logprobs"] = -1, -np.inf
    for row, told in enumerate((record.logprobs or [])[:n]):
        named = [(-value, token) for token, _, value in told.top if token is not None and value is not None]
        top = sorted(set(named))[:most]
        rows["ids"][row, : len(top)] = [token for _, token in top]
        rows["logprobs"][row, : len(top)] = [-value for value, _ in top]
    return rows


def asked_alternatives(record: Record) -> int | None:
    """None where no log-probabilities were asked for. Chat asks for a truth value, and for their number apart."""
    asked = record.asked.get("logprobs")
    count = record.asked.get("top_logprobs") if asked is True else asked
    return count if type(count) is int else None


def _missing(arm: Arm) -> str:
    why = why_none(arm.label, arm.probed("logprobs"), "logprobs")
    return why or f"{arm.label} reports no log-probabilities of its own"


def _estimate(found: Evidenced) -> Estimate:
    return Estimate(
        value=found.log_sup / math.log(10),
        low=None,
        high=None,
        level=0.95,
        n=found.n,
        unit="powers of ten of evidence",
        method=METHOD,
    )


def _says(own: Evidenced, rejects: bool, shared: bool) -> str:
    if not rejects:
        return "tokens fall as the log-probabilities reported with them say"
    says = f"tokens do not fall as the log-probabilities reported with them say; they look like {own.likeliest}"
    return f"{says}, and so do stock's: it is how the engine reports" if shared else says
