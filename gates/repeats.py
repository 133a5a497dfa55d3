"""Repeated draws at one place: how far the law that they come from is from the reference's, ‖q − p‖².

At a place visited n times with counts c over the reference's cells, Q = Σc(c − 1)/(n(n − 1)) − (2/n)Σcp + Σp² has the
mean ‖q − p‖² whatever q is: an error that is frozen in the model comes back at every draw and adds up. Places are
pooled with the weight n(n − 1), the inverse of their variance but for p.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates.probes import Probed
from gates.residuals import Floats, cells
from gates.scored import Rows

Place = tuple[str, tuple[int, ...]]
"""(id of the prompt, tokens of the reply before this draw)."""

Tree = dict[tuple[int, ...], Counter[int]]

SIMULATED = 2000
LEAST_VISITS = 16
_COUNTED = 50  # simulated totals beyond the one seen: enough to count them instead of looking at their tail
_LEAST_EFFECTIVE = 0.02  # of the simulated values, when they are weighted to lie about the one seen
_SURE = 0.9
"""Where one token is as likely as this, draws tell nothing of the model, and a few stray ones make a long tail."""


Ints = npt.NDArray[np.int64]


def tree(replies: Iterable[Sequence[int]]) -> Tree:
    """Tokens before → counts of the next token, over replies to one prompt.

    Given how often a place was visited, its draws are independent and all from one law: a reply's further course does
    not depend on how it came there.
    """
    found: Tree = {}
    for ids in replies:
        for n, token in enumerate(ids):
            found.setdefault(tuple(ids[:n]), Counter())[token] += 1
    return found


@dataclass(frozen=True, slots=True)
class Draws:
    """Counts at m places. counts, p: (m, k + 1) over the reference's k cells and `other`; places: what they are of."""

    places: list[Place]
    counts: Ints
    p: Floats

    @property
    def n(self) -> Ints:
        """(m,) draws at each."""
        return np.asarray(self.counts.sum(axis=1), np.int64)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def at(self, index: Sequence[int]) -> "Draws":
        rows = list(index)
        return Draws([self.places[i] for i in rows], self.counts[rows], self.p[rows])


def draws(probed: Probed, laws: Mapping[Place, Rows], deeper: bool) -> Draws:
    """At every open place with LEAST_VISITS draws and a known law. deeper: only after the first token of a reply."""
    replies: dict[str, list[list[int]]] = {}
    for record in probed.records:
        if record.token_ids:
            replies.setdefault(record.prompt_id, []).append(record.token_ids)
    seen = {
        (prompt_id, before): counts
        for prompt_id, found in replies.items()
        for before, counts in tree(found).items()
        if counts.total() >= LEAST_VISITS and (before or not deeper) and (prompt_id, before) in laws
    }
    places = list(seen)
    if not places:
        return Draws([], np.zeros((0, 1), np.int64), np.zeros((0, 1)))
    block = cells(np.concatenate([laws[place] for place in places]))
    p = np.concatenate([block.p, block.other[:, None]], axis=1)
    found = Draws(places, _counted(block.ids, [seen[place] for place in places]), p / p.sum(axis=1, keepdims=True))
    return found.at(np.flatnonzero(found.p.max(axis=1) < _SURE).tolist())


def laws(probes: Sequence[Probed]) -> dict[Place, Rows]:
    """Place → the one row that holds the reference's law there, from whichever reply was scored."""
    found: dict[Place, Rows] = {}
    for probed in probes:
        for record in probed.records:
            rows, ids = probed.rows(record), record.token_ids or []
            for n in range(len(rows)):
                found.setdefault((record.prompt_id, tuple(ids[:n])), rows[n : n + 1])
    return found


def _counted(ids: npt.NDArray[np.int32], found: Sequence[Counter[int]]) -> Ints:
    out = np.zeros((len(found), ids.shape[1] + 1), np.int64)
    for row, (listed, counts) in enumerate(zip(ids.tolist(), found, strict=True)):
        cell = {token: place for place, token in enumerate(listed) if token >= 0}
        for token, count in counts.items():
            out[row, cell.get(token, -1)] += count
    return out


def distances(counts: Ints, p: Floats) -> Floats:
    """Q of each place. counts: (…, m, cells) of at least two draws a place; p: (m, cells)."""
    n = counts.sum(axis=-1)
    pairs = (counts * (counts - 1)).sum(axis=-1) / (n * (n - 1))
    return np.asarray(pairs - 2 * (counts * p).sum(axis=-1) / n + (p**2).sum(axis=-1), np.float64)


def weights(n: Ints) -> Floats:
    pairs = (n * (n - 1)).astype(np.float64)
    return np.asarray(pairs / pairs.sum(), np.float64)


def pooled(found: Draws) -> float:
    return float(weights(found.n) @ distances(found.counts, found.p))


def by_chance(found: Draws, rng: np.random.Generator) -> Floats:
    """(SIMULATED, m) what each place adds to the pooled Q where the draws come from p itself."""
    counts = rng.multinomial(found.n, found.p, size=(SIMULATED, len(found.n)))
    return weights(found.n) * distances(counts, found.p)


def p_value(found: Draws, rng: np.random.Generator) -> float:
    """P of so large a pooled Q, or a larger, where the draws come from p: from simulated draws, as Q is skewed."""
    return beyond(pooled(found), by_chance(found, rng))


def beyond(value: float, simulated: Floats) -> float:
    """P(Σ_j X_j ≥ value), X_j independent, simulated: (N, m) draws of each.

    Counted where enough of the simulated sums lie beyond; else the tail of the sum, by Lugannani and Rice's saddle
    point (1980) over each place's own simulated values. Where even those say too little of so far a tail, their
    Chernoff bound, which is never too small.
    """
    from scipy.special import log_ndtr

    counted = int((simulated.sum(axis=1) >= value).sum())
    if counted >= _COUNTED:
        return (counted + 1) / (len(simulated) + 1)
    t = _tilt(value, simulated)
    log_mgf, mean, variance = _tilted(t, simulated)
    exponent = t * value - log_mgf
    if exponent <= 0 or variance <= 0 or not math.isclose(mean, value, rel_tol=1e-3, abs_tol=1e-12):
        return min(1.0, math.exp(-max(exponent, 0.0)))
    w, u = math.sqrt(2 * exponent), t * math.sqrt(variance)
    density = math.exp(-exponent) / math.sqrt(2 * math.pi)
    return min(1.0, max(math.exp(float(log_ndtr(-w))) + density * (1 / u - 1 / w), 0.0))


def _tilt(value: float, simulated: Floats) -> float:
    """The t whose tilted mean is the value, or the largest that the simulated values still stand."""
    scale = float(np.sqrt(simulated.var(axis=0).sum())) or 1.0
    low, high = 0.0, 64.0 / scale
    for _ in range(40):
        t = (low + high) / 2
        if _effective(t, simulated) < _LEAST_EFFECTIVE or _tilted(t, simulated)[1] > value:
            high = t
        else:
            low = t
    return low


def _tilted(t: float, simulated: Floats) -> tuple[float, float, float]:
    """Σ_j of log E exp(tX_j), and of the mean and the variance of X_j under that weight."""
    shift = (t * simulated).max(axis=0)
    weight = np.exp(t * simulated - shift)
    mass = weight.mean(axis=0)
    mean = (weight * simulated).mean(axis=0) / mass
    square = (weight * simulated**2).mean(axis=0) / mass
    return float((np.log(mass) + shift).sum()), float(mean.sum()), float((square - mean**2).sum())


def _effective(t: float, simulated: Floats) -> float:
    """The least share, over the places, of simulated values that the weight leaves in effect (Kish)."""
    weight = np.exp(t * (simulated - simulated.max(axis=0)))
    return float((weight.sum(axis=0) ** 2 / (weight**2).sum(axis=0)).min()) / len(simulated)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both endpoints' draws at the places that they share."""

    candidate: Draws
    stock: Draws

    @staticmethod
    def of(candidate: Draws, stock: Draws) -> "Pair":
        where = {place: i for i, place in enumerate(stock.places)}
        both = [i for i, place in enumerate(candidate.places) if place in where]
        return Pair(candidate.at(both), stock.at([where[candidate.places[i]] for i in both]))

    @property
    def weights(self) -> Floats:
        return weights(np.minimum(self.candidate.n, self.stock.n))

    @property
    def gaps(self) -> Floats:
        """(m,) Q_c − Q_s."""
        return distances(self.candidate.counts, self.candidate.p) - distances(self.stock.counts, self.stock.p)

    @property
    def gap(self) -> float:
        return float(self.weights @ self.gaps)

    def p_value(self, rng: np.random.Generator) -> float:
        """P of so large a Q of the candidate's, or a larger, given both servers' draws together, where they come from
        one law, be it p or not: they might as well be swapped.

        Q alone is the best of Q − wQ_s here. Of n draws each, with x half the difference of the two shares and y their
        mean less p, it is (1 − w)|x|² + 2(1 + w)x·y and a constant; an error δ of the candidate's alone gives |x|² and
        4x·y the means |δ|²/4 and |δ|² at variances of 1 to 8, so that |x|² and x·y belong together as 1 to 2.
        """
        together, p, weight = self.candidate.counts + self.stock.counts, self.candidate.p, self.weights
        simulated = np.empty((SIMULATED, len(together)))
        for place, (counts, n) in enumerate(zip(together, self.candidate.n, strict=True)):
            ours = rng.multivariate_hypergeometric(counts, n, size=SIMULATED)
            simulated[:, place] = distances(ours[:, None], p[place][None])[:, 0]
        return beyond(float(weight @ distances(self.candidate.counts, p)), weight * simulated)

    def spread(self) -> float:
        """Standard error of the gap, from how it differs between the places: whatever the two laws are."""
        weight, gaps = self.weights, self.gaps
        m = len(gaps)
        return math.sqrt(m / (m - 1) * float((weight**2 * (gaps - self.gap) ** 2).sum())) if m > 1 else math.inf


def moved_by(sd: float, found: Draws) -> float:
    """The pooled mean of Q where frozen noise of that sd lies on the logits: sd²·Σ_{c≤k} p²(1 − 2p + Σp²)."""
    p = found.p
    s2 = (p**2).sum(axis=1)
    listed = p[:, :-1]
    return sd**2 * float(weights(found.n) @ (listed**2 * (1 - 2 * listed + s2[:, None])).sum(axis=1))
