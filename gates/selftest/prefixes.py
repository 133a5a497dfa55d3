"""repeat_prefix put to the test: draws at prefixes chosen from scored tokens, judged by the check's own functions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gates import repeats
from gates.checks import repeat_prefix
from gates.repeats import Draws, Pair
from gates.residuals import Floats
from gates.scored import Rows
from gates.selftest import population, tables
from gates.selftest.population import Laws
from gates.selftest.tables import K
from loadgen.record import SCORE_DTYPE

Choose = Callable[[Rows, int], Sequence[int]]
"""(scored tokens, count) → the tokens whose place shows a frozen error most, best first: as the probe chooses them."""

SCORED = 10_000
"""Tokens that the prefixes are chosen from; stock's first pass of the profiles has about as many."""

PER_SITE = 100  # runs at one choice of prefixes

SIZES = {0.005: (32, 48, 64, 78), 0.01: (12, 16, 20, 23, 32, 48)}
"""KL a token → numbers of prefixes of which the power is asked."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What the probe asks for: so many prefixes, so many draws at each."""

    choose: Choose
    prefixes: int
    draws: int


@dataclass(frozen=True, slots=True)
class Site:
    """Prefixes and their laws. p: (m, tokens) sampled from; scored: (m, tokens) as the reference scores them. nulls:
    what chance alone adds at the first so many of them, simulated once for all runs here: it rests on the laws and on
    the number of draws alone."""

    p: Laws
    scored: Laws
    draws: int
    rng: np.random.Generator
    nulls: dict[int, Floats] = field(default_factory=dict)

    @staticmethod
    def made(probe: Probe, scorer_noise: float, seed: int) -> "Site":
        rng = np.random.default_rng([7, seed])
        p = population.laws(SCORED, rng)
        scored = population.disturbed(p, scorer_noise, rng) if scorer_noise else p
        best = list(probe.choose(_rows(scored), probe.prefixes))
        return Site(p[best], scored[best], probe.draws, rng)

    def drawn(self, q: Laws) -> Draws:
        places: list[repeats.Place] = [(f"prefix-{number}", ()) for number in range(len(q))]
        law, seen = tables.cell_masses(self.scored, self.scored), tables.cell_masses(q, self.scored)
        counts = self.rng.multinomial(np.full(len(q), self.draws), seen / seen.sum(axis=1, keepdims=True))
        return Draws(places, counts, law / law.sum(axis=1, keepdims=True))

    def by_reference(self, found: Draws) -> float:
        """P of so large a pooled Q under the reference's law."""
        size = len(found.places)
        if size not in self.nulls:
            self.nulls[size] = repeats.by_chance(found, self.rng)
        return repeats.beyond(repeats.pooled(found), self.nulls[size])


def _rows(scored: Laws) -> Rows:
    rows = np.zeros(len(scored), SCORE_DTYPE)
    order = np.argsort(-scored[:, : 2 * K], axis=1, kind="stable")[:, :K]
    rows["request"], rows["ids"] = np.arange(len(scored)), order
    rows["logprobs"] = np.log(np.take_along_axis(scored, order, axis=1))
    return rows


def _sites(probe: Probe, scorer_noise: float, seed: int, count: int) -> Iterator[Site]:
    """A site for each run."""
    for start in range(0, count, PER_SITE):
        site = Site.made(probe, scorer_noise, 1000 * seed + start)
        yield from [site] * min(PER_SITE, count - start)


@dataclass(frozen=True, slots=True)
class Chances:
    """p-values of runs. reference: by its law; stock: by a swap with stock's draws, NaN where nothing asked for it."""

    reference: npt.NDArray[np.float64]
    stock: npt.NDArray[np.float64]

    @property
    def both(self) -> npt.NDArray[np.float64]:
        """The verdict's: each must say so."""
        return np.fmax(self.reference, self.stock)

    @staticmethod
    def joined(parts: "Sequence[Chances]") -> "Chances":
        return Chances(np.concatenate([one.reference for one in parts]), np.concatenate([one.stock for one in parts]))


def lossless(probe: Probe, scorer_noise: float, below: float, seed: int, count: int) -> Chances:
    """Whole probes of two equal servers. The swap is simulated where the reference's p is at most `below`."""
    found = []
    for site in _sites(probe, scorer_noise, seed, count):
        pair = Pair(site.drawn(site.p), site.drawn(site.p))
        chance = site.by_reference(pair.candidate)
        found.append((chance, pair.p_value(site.rng) if chance <= below else np.nan))
    reference, stock = np.array(found).T
    return Chances(reference, stock)


def noisy(probe: Probe, kl: float, sizes: Sequence[int], seed: int, count: int) -> Chances:
    """(runs, sizes) of candidates with frozen noise of this KL a token on their logits, at the best so many prefixes;
    every run has noise of its own."""
    sd = repeat_prefix.Settings(kl=kl).sd
    reference, stock = np.empty((count, len(sizes))), np.empty((count, len(sizes)))
    for run, site in enumerate(_sites(probe, 0.0, seed, count)):
        candidate, other = site.drawn(population.disturbed(site.p, sd, site.rng)), site.drawn(site.p)
        for place, size in enumerate(sizes):
            pair = Pair(candidate.at(range(size)), other.at(range(size)))
            reference[run, place] = site.by_reference(pair.candidate)
            stock[run, place] = pair.p_value(site.rng)
    return Chances(reference, stock)


def judged(probe: Probe, kl: float, level: float, seed: int, count: int) -> npt.NDArray[np.bool_]:
    """(runs, 2): whole probes called equivalent, called different at the level. kl: 0 of a lossless candidate."""
    settings = repeat_prefix.Settings()
    out = np.zeros((count, 2), np.bool_)
    for run, site in enumerate(_sites(probe, 0.0, seed, count)):
        law = population.disturbed(site.p, repeat_prefix.Settings(kl=kl).sd, site.rng) if kl else site.p
        found = repeat_prefix.measured(Pair(site.drawn(law), site.drawn(site.p)), settings, 0.95)
        inside = found.gap + found.reach < found.margin
        out[run] = inside, found.p_value <= level and not inside
    return out


def draws_for(power: npt.NDArray[np.float64], sizes: Sequence[int], draws: int, wanted: float) -> int | None:
    """The fewest draws from which on the power stays at what is wanted; None where the most are too few."""
    enough = np.flip(np.logical_and.accumulate(np.flip(power >= wanted)))
    return int(sizes[int(enough.argmax())]) * draws if enough.any() else None
