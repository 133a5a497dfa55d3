"""Does the model err by a little, always in the same way, as a quantized one does? Many draws at few prefixes tell."""

import math
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from gates import repeats, speed
from gates.checks import Checked, CheckSettings, Terms, without_data
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding, Outcome
from gates.probes import no_ids, not_sent
from gates.repeats import Draws, Pair
from loadgen.record import Probe

SEQUENCES = 0
P_VALUES = 1
PROBES: tuple[Probe, ...] = ("repeat_prefix",)

METHOD = "Q over repeated draws at chosen prefixes, minus stock's own; interval over the prefixes"
METHOD_OF_STOCK = "Q over repeated draws at chosen prefixes; interval over the prefixes"

_NOISE_AT = (0.005, 0.229)  # KL a token, and the sd of the logits' noise that makes it, in nat
_FEWEST = 8  # places


class Settings(CheckSettings):
    """Frozen noise of less than this KL a token (.001 is 8 bits, .005 six, .03 four) is inside the margin."""

    kl: float = Field(default=0.005, gt=0, le=1)

    @property
    def sd(self) -> float:
        kl, sd = _NOISE_AT
        return sd * math.sqrt(self.kl / kl)


@dataclass(frozen=True, slots=True)
class Measured:
    p_value: float
    gap: float
    reach: float  # half of its interval
    margin: float


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    deeper = longer(evidence.candidate)
    probed = [arm.probed("repeat_prefix") for arm in evidence.arms]
    laws = repeats.laws(probed)
    stock, candidate = (repeats.draws(one, laws, deeper) for one in probed)
    pair = Pair.of(candidate, stock)
    if len(pair.candidate.places) < _FEWEST or (not deeper and speculates(evidence.candidate)):
        return without_data("repeat_prefix", terms, _missing(evidence, deeper))
    found = measured(pair, settings, terms.equivalent)
    return Checked([_finding(pair, found, deeper, terms)])


def measured(pair: Pair, settings: Settings, level: float) -> Measured:
    """Both halves must be unlikely by chance: so far from the reference, and so much further than stock.

    The first alone would take a numerical floor that both share for a fault.
    """
    from scipy.special import stdtrit

    # Seeded from the data, so that judging twice gives one verdict.
    rng = np.random.default_rng([*pair.candidate.counts.sum(axis=0).tolist(), *pair.stock.counts.sum(axis=0).tolist()])
    p_value = max(repeats.p_value(pair.candidate, rng), pair.p_value(rng))
    reach = float(stdtrit(len(pair.gaps) - 1, (1 + level) / 2)) * pair.spread()
    return Measured(p_value, pair.gap, reach, repeats.moved_by(settings.sd, pair.candidate))


def _finding(pair: Pair, found: Measured, deeper: bool, terms: Terms) -> Finding:
    inside = found.gap + found.reach < found.margin
    rejects = found.p_value <= terms.p_value
    outcome: Outcome = "equivalent" if inside else "different" if rejects else "undecided"
    return Finding(
        check="repeat_prefix",
        required=terms.required,
        outcome=outcome,
        estimate=_estimate(found.gap, found.reach, pair.candidate, METHOD, terms.equivalent),
        stock=_of_stock(pair.stock, terms.equivalent),
        margin=found.margin,
        immaterial=inside and rejects,
        says=_says(outcome, pair.candidate, found, deeper, inside and rejects),
    )


def _estimate(value: float, reach: float, draws: Draws, method: str, level: float) -> Estimate:
    return Estimate(
        value=value,
        low=value - reach,
        high=value + reach,
        level=level,
        n=draws.total,
        unit="draws",
        method=method,
    )


def _of_stock(stock: Draws, level: float) -> Estimate:
    from scipy.special import stdtrit

    weight, each = repeats.weights(stock.n), repeats.distances(stock.counts, stock.p)
    value, m = float(weight @ each), len(each)
    spread = math.sqrt(m / (m - 1) * float((weight**2 * (each - value) ** 2).sum()))
    return _estimate(value, float(stdtrit(m - 1, (1 + level) / 2)) * spread, stock, METHOD_OF_STOCK, level)


def longer(arm: Arm) -> bool:
    """Whether the probe's replies were to hold more than a first token, as those of a speculating server must.

    That was settled as they were sent: chunks that a busy client finds merged make any server look like one.
    """
    return any(record.asked.get("max_tokens", 1) > 1 for record in arm.probed("repeat_prefix").records)


def speculates(arm: Arm) -> bool:
    """By the server's counters."""
    return any(speed.acceptance(arm, profile) is not None for profile in {one.profile for one in arm.passes})


def _missing(evidence: Evidence, deeper: bool) -> str:
    for arm in evidence.arms:
        probed = arm.probed("repeat_prefix")
        if not probed.records:
            return not_sent(arm.label, "repeat_prefix")
        if not any(record.token_ids for record in probed.records):
            return no_ids(arm.label, probed, "repeat_prefix")
    if not repeats.laws([arm.probed("repeat_prefix") for arm in evidence.arms]):
        return "the probe repeat_prefix is not scored: `loadgate score RUN --reference ENDPOINT`"
    if not deeper and speculates(evidence.candidate):
        return "the candidate speculates, and single first tokens (prefill only) never run its verification"
    return f"fewer than {_FEWEST} prefixes were drawn at {repeats.LEAST_VISITS} times on both endpoints"


def _says(outcome: Outcome, draws: Draws, found: Measured, deeper: bool, immaterial: bool) -> str:
    of = f"{draws.total:,} draws at {len(draws.places)} prefixes{'' if deeper else ' (prefill only)'}"
    if outcome == "different":
        says = f"{of} fall as a model makes them that errs a little, always in the same way, as by quantization"
        return f"{says}; or they are not independent, which agreement would show"
    if outcome == "undecided":
        return f"{of} are too few to tell"
    lead = "measurably different from stock, wholly inside the margin: " if immaterial else ""
    return f"{lead}{of} fall as the stock model's do; what it errs by is less than the margin allows"
