"""Where no server tells log-probabilities: do the candidate's draws at one prefix fall as stock's own draws there do?

With counts a of n and b of m draws at a prefix, U = Σa(a − 1)/(n(n − 1)) + Σb(b − 1)/(m(m − 1)) − 2Σab/(nm) has the
mean ‖q_a − q_b‖², whatever the two laws are. Were they one, the draws might as well be swapped: P is that of so large a
U among the swaps. It can reject. That nothing was found is no proof: what it could have found is said instead.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates import repeats
from gates.checks import Checked, CheckSettings, Terms, without_data
from gates.checks.greedy import agreement
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding
from gates.probes import not_sent
from gates.repeats import LEAST_VISITS, SIMULATED, Place
from gates.residuals import Floats
from loadgen.record import Probe

SEQUENCES = 0
P_VALUES = 1
PROBES: tuple[Probe, ...] = ("repeat_prefix", "greedy")

METHOD = "two-sample U of repeated draws at shared prefixes, unbiased for ‖q − p‖²; permutation within prefixes"

_FEWEST = 8  # places

Ints = npt.NDArray[np.int64]


class Settings(CheckSettings):
    """It has no margin: it may reject, and says what it could have seen otherwise."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Counts of the candidate's and of stock's draws at m shared places, (cells,) each, over the tokens seen there."""

    own: Sequence[Ints]
    stock: Sequence[Ints]

    @property
    def draws(self) -> int:
        return sum(int(counts.sum()) for counts in self.own)

    @property
    def weights(self) -> Floats:
        fewer = [min(int(a.sum()), int(b.sum())) for a, b in zip(self.own, self.stock, strict=True)]
        return repeats.weights(np.array(fewer, np.int64))

    @property
    def gap(self) -> float:
        each = [float(distance(a, b)) for a, b in zip(self.own, self.stock, strict=True)]
        return float((self.weights * np.array(each)).sum())

    def by_swaps(self, rng: np.random.Generator) -> Floats:
        """(SIMULATED, m): what each place adds where the two servers' draws are dealt out anew."""
        out = np.empty((SIMULATED, len(self.own)))
        for place, (own, stock) in enumerate(zip(self.own, self.stock, strict=True)):
            together = own + stock
            dealt = rng.multivariate_hypergeometric(together, int(own.sum()), size=SIMULATED)
            out[:, place] = distance(dealt, together - dealt)
        return out * self.weights


def distance(a: Ints, b: Ints) -> Floats:
    """U of each. a, b: (…, cells) counts of at least two draws."""
    n, m = a.sum(axis=-1), b.sum(axis=-1)
    within = (a * (a - 1)).sum(axis=-1) / (n * (n - 1)) + (b * (b - 1)).sum(axis=-1) / (m * (m - 1))
    return np.asarray(within - 2 * (a * b).sum(axis=-1) / (n * m), np.float64)


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    found = pairs(evidence)
    if len(found.own) < _FEWEST:
        return without_data("two_sample", terms, _missing(evidence))
    # Seeded from the data, so that judging twice gives one verdict.
    rng = np.random.default_rng([len(found.own), found.draws, *(int(counts.max()) for counts in found.own)])
    swaps = found.by_swaps(rng)
    p_value = repeats.beyond(found.gap, swaps)
    rejects = p_value <= terms.p_value
    least = max(float(np.quantile(swaps.sum(axis=1), 0.95)), 0.0)
    finding = Finding(
        check="two_sample",
        required=terms.required,
        # Nothing bounds what was not found, so it is never equivalent, nor passed where it is required.
        outcome="different" if rejects else "undecided",
        estimate=_estimate(found, terms.equivalent),
        says=_says(found, p_value, rejects, least) + _greedy(evidence),
    )
    return Checked([finding])


def pairs(evidence: Evidence) -> Pairs:
    """At every place that both servers came to LEAST_VISITS times."""
    own, stock = (visits(arm) for arm in (evidence.candidate, evidence.stock))
    shared = [(counts, stock[place]) for place, counts in own.items() if place in stock]
    both = [(one, other, sorted(one.keys() | other.keys())) for one, other in shared]
    return Pairs(
        [np.array([one[token] for token in tokens], np.int64) for one, _, tokens in both],
        [np.array([other[token] for token in tokens], np.int64) for _, other, tokens in both],
    )


def visits(arm: Arm) -> dict[Place, Counter[int]]:
    replies: dict[str, list[list[int]]] = {}
    for record in arm.probed("repeat_prefix").records:
        if record.token_ids:
            replies.setdefault(record.prompt_id, []).append(record.token_ids)
    return {
        (prompt_id, before): counts
        for prompt_id, found in replies.items()
        for before, counts in repeats.tree(found).items()
        if counts.total() >= LEAST_VISITS
    }


def _estimate(found: Pairs, level: float) -> Estimate:
    return Estimate(
        value=found.gap,
        low=None,
        high=None,
        level=level,
        n=found.draws,
        unit="draws",
        method=METHOD,
    )


def _says(found: Pairs, p_value: float, rejects: bool, least: float) -> str:
    of = f"{found.draws:,} draws at {len(found.own)} prefixes"
    if rejects:
        return f"{of} fall otherwise than stock's own at the same prefixes (p = {p_value:.1g})"
    return (
        f"{of} fall as stock's own do (p = {p_value:.2g}), which is weak evidence: without log-probabilities a "
        f"difference of the chances under {math.sqrt(least):.2g} (root of the sum of their squares) does not show"
    )


def _greedy(evidence: Evidence) -> str:
    alike = agreement(evidence)
    if not alike.replies:
        return ""
    return f"; at temperature 0, {alike.same} of {alike.replies} replies are stock's word for word"


def _missing(evidence: Evidence) -> str:
    for arm in evidence.arms:
        records = arm.probed("repeat_prefix").records
        if not records:
            return not_sent(arm.label, "repeat_prefix")
        if not any(record.token_ids for record in records):
            return f"the probe repeat_prefix brought no token ids from {arm.label}"
    return f"fewer than {_FEWEST} prefixes were drawn at {LEAST_VISITS} times on both endpoints"
