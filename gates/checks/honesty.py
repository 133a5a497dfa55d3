"""Do the candidate's tokens come from the log-probabilities that it reports with them?

q̂ is what it reports. Under q̂ the product of r(x)/q̂(x) over its tokens is a test martingale for every law r that is
fixed before the token is seen: here the reference's p, and the named alternatives of q̂ itself (gates.alternatives),
half of the weight each. A server that samples at temperature .9 and reports the model's own figures is found by the
latter. What stock's tokens show too (an engine may report after its sampling settings, or before) is no difference, so
the candidate's must also be more like the alternative than stock's are.
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
from gates.scored import LEAST_LOGPROB, Ints, Rows
from loadgen.record import SCORE_DTYPE, SCORED_TOP_K, Probe, Record

SEQUENCES = 0
P_VALUES = 1
PROBES: tuple[Probe, ...] = ("logprobs",)

METHOD = "e-process on emitted tokens: the reference's law, and named alternatives, over the reported one"

_NAMED = ("the reference's own law", *(one.says for one in ALTERNATIVES))
_FEWEST = 50  # tokens of each server: fewer do not tell how they vary

_KEPT = 0.1
"""Share of q̂ in the reference's term: the two are of different passes of one model, and no noisy token ends it."""


_MASS_ERROR = 0.01
"""By how much probabilities that are rounded for their transport may add up to more than 1."""


class Settings(CheckSettings):
    """It has no margin: it may reject, and passes otherwise."""


@dataclass(frozen=True, slots=True)
class Reported:
    """n tokens that were reported with log-probabilities. log_ratios: (n, 1 + J) of r over q̂ for each of _NAMED;
    reply: (n,) whose they are, never falling."""

    log_ratios: Floats
    reply: Ints

    @property
    def n(self) -> int:
        return len(self.log_ratios)

    @property
    def log_sup(self) -> float:
        """The largest log E so far; 0 where there is nothing."""
        if not self.n:
            return 0.0
        sums = np.cumsum(self.log_ratios, axis=0)
        running = np.logaddexp(sums[:, 0], log_mean_exp(sums[:, 1:])) - math.log(2)
        return max(0.0, float(running.max()))

    @property
    def p_value(self) -> float:
        """Of tokens drawn from what is reported, however one looks (Ville 1939)."""
        return math.exp(-self.log_sup)

    @property
    def likeliest(self) -> str:
        return _NAMED[int(np.argmax(self.log_ratios.sum(axis=0)))]

    def p_against(self, stock: "Reported") -> float:
        """Of tokens so much more like an alternative than stock's are: the normal law of the difference of the means.

        The alternative is the one that all tokens together are likest, each server's counting as much: chosen by the
        candidate's alone it would flatter them.
        """
        from scipy.special import ndtr

        which = int(np.argmax(self.log_ratios.mean(axis=0) + stock.log_ratios.mean(axis=0)))
        (own, spread), (other, of_other) = self._mean(which), stock._mean(which)
        error = math.hypot(spread, of_other)
        return float(ndtr(-(own - other) / error)) if error > 0 else 1.0

    def _mean(self, which: int) -> tuple[float, float]:
        """With its standard error, by tokens or by whole replies, whichever is more: the tokens of one may be alike."""
        values = self.log_ratios[:, which]
        mean = float(values.mean())
        of_replies = np.bincount(self.reply, weights=values - mean)
        return mean, math.sqrt(max(float(((values - mean) ** 2).sum()), float((of_replies**2).sum()))) / self.n


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    own, stock = (reported(arm.probed("logprobs")) for arm in (evidence.candidate, evidence.stock))
    for arm, found in ((evidence.candidate, own), (evidence.stock, stock)):
        if found.n < _FEWEST:
            return without_data("honesty", terms, _missing(arm, found))
    alone = own.p_value <= terms.p_value
    rejects = alone and own.p_against(stock) <= terms.p_value
    finding = Finding(
        check="honesty",
        required=terms.required,
        outcome="different" if rejects else "passed",
        estimate=_estimate(own),
        stock=_estimate(stock),
        says=_says(own, alone, rejects),
    )
    return Checked([finding])


def reported(probed: Probed) -> Reported:
    """All replies with log-probabilities, in the order of sending."""
    parts = [part for record in probed.records if (part := _log_ratios(record, probed.rows(record))) is not None]
    if not parts:
        return Reported(np.empty((0, len(_NAMED))), np.empty(0, np.int64))
    return Reported(np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts]))


def _log_ratios(record: Record, rows: Rows) -> Floats | None:
    """(n, 1 + J) of each token that was scored and has a reported log-probability."""
    own = own_logprobs(record)
    if own is None or not len(rows) or _above_one(own):
        return None
    own = own[: len(rows)]
    reference = rows["logprob"].astype(np.float64)
    known = np.isfinite(own)
    # What the reference does not tell of (it lists others) counts as of no chance: left out, it would select by what
    # was drawn.
    ratio = np.where(np.isfinite(reference), np.exp(np.minimum(reference - own, 50)), 0)
    first = np.log((1 - _KEPT) * ratio + _KEPT)
    others = np.zeros((len(rows), len(ALTERNATIVES)))
    reported = as_rows(record, len(rows))
    logp = reported["logprobs"].astype(np.float64)
    # What adds up to more than 1 is no law, and says nothing of what else it might have been.
    listed = (logp > LEAST_LOGPROB).any(axis=1) & (np.exp(np.minimum(logp, 1)).sum(axis=1) <= 1 + _MASS_ERROR)
    if listed.any():
        others[listed] = log_ratios(cells(reported[listed]))
    return np.concatenate([first[:, None], others], axis=1)[known]


def _above_one(own: Floats) -> bool:
    return bool((own > _MASS_ERROR).any())


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


def _missing(arm: Arm, found: Reported) -> str:
    why = why_none(arm.label, arm.probed("logprobs"), "logprobs")
    if why is not None:
        return why
    if not found.n:
        told = [own for record in arm.probed("logprobs").records if (own := own_logprobs(record)) is not None]
        above = any(_above_one(own) for own in told)
        return f"{arm.label} reports {'chances above 1' if above else 'no log-probabilities of its own'}"
    return f"{arm.label} reports log-probabilities of {found.n} scored tokens, where {_FEWEST} are the fewest that tell"


def _estimate(found: Reported) -> Estimate:
    return Estimate(
        value=found.log_sup / math.log(10),
        low=None,
        high=None,
        level=0.95,
        n=found.n,
        unit="powers of ten of evidence",
        method=METHOD,
    )


def _says(own: Reported, alone: bool, rejects: bool) -> str:
    if not alone:
        return "tokens fall as the log-probabilities reported with them say"
    says = f"tokens do not fall as the log-probabilities reported with them say; they look like {own.likeliest}"
    return says if rejects else f"{says}, no more than stock's do: it may be how the engine reports"
