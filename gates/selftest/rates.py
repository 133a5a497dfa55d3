"""How often the gates err, and how many tokens they take: each figure from many streams, spread over processes."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gates import plan
from gates.alternatives import ALTERNATIVES, Alternative
from gates.selftest import comparison, faults, population, streams, tables
from gates.selftest.comparison import Served
from gates.selftest.population import Laws
from gates.selftest.tables import Draw
from gates.selftest.world import CONTEXTS, World, sometimes, where, whole

BOUNDS = (20.0, 100.0, 1000.0)
"""of E; a lossless stream may pass each with a chance of one over it."""

FLOOR_TEMPERATURE, FLOOR_NOISE = 0.985, 0.3

ENDED_FROM_OUTSIDE = (
    "A process that did part of the work was ended from outside, by the system for want of memory perhaps (`dmesg` "
    "tells). Nothing of this selftest is left; start it again with more memory free, or with fewer --streams."
)

T = TypeVar("T")


def spread(task: Callable[[int, int], T], total: int, each: int, processes: int) -> Iterator[T]:
    """task(seed, count) for counts that add up to the total; every task has a seed of its own."""
    counts = [min(each, total - start) for start in range(0, total, each)]
    if processes < 2:
        yield from (task(seed, count) for seed, count in enumerate(counts))
        return
    with ProcessPoolExecutor(processes) as executor:
        try:
            yield from executor.map(task, range(len(counts)), counts)
        except BrokenProcessPool:
            raise BrokenProcessPool(ENDED_FROM_OUTSIDE) from None


def allowed(streams: int, rate: float) -> float:
    """The most of so many that a true rate brings but in one of a thousand selftests."""
    from scipy.special import bdtr

    counts = np.arange(streams + 1)
    return float(counts[np.searchsorted(bdtr(counts, streams, rate), 0.999)])


# Lossless streams: how large E becomes by chance.


def plain_sups(tokens: int, scorer_noise: float, seed: int, count: int) -> npt.NDArray[np.float64]:
    world = World.made(1000 + seed, scorer_noise)
    return streams.courses(world.pool, world.draw(world.model.p), count, tokens, math.inf).sup


def chunked_sups(tokens: int, sampled: bool, seed: int, count: int) -> npt.NDArray[np.float64]:
    """Of a lossless speculator, over its chunk indices. sampled: drafts are drawn, else the argmax."""
    world = World.made(2000 + seed)
    k = tables.K
    p, guess = (tables.cell_masses(law, world.scored) for law in (world.model.p, world.model.draft))
    if not sampled:
        top = guess.argmax(axis=1)
        guess = np.zeros_like(guess)
        guess[np.arange(len(top)), top] = 1
    passed = np.minimum(p, guess)
    # Per context: its cells as accepted drafts, then as what is drawn where a draft was rejected.
    masses = np.concatenate([passed, p - passed], axis=1)
    flat = np.arange(CONTEXTS)[:, None] * (k + 1) + np.tile(np.arange(k + 1), 2)[None, :]
    accepted = np.tile(np.repeat([True, False], k + 1), CONTEXTS)
    pool = dataclasses.replace(world.pool, log_ratios=world.pool.log_ratios[flat.ravel()])
    draw = tables.drawing(masses, world.rng)
    return streams.chunked_courses(pool, draw, accepted, 4, count, tokens)


# Faults: what E alone needs, and what the verdict needs.


@dataclass(frozen=True, slots=True)
class Found:
    """tokens: (streams,) until found, −1 where it was not; right: (streams,) found, and named rightly."""

    tokens: npt.NDArray[np.int64]
    right: npt.NDArray[np.bool_]

    @property
    def caught(self) -> float:
        return float((self.tokens > 0).mean())

    @property
    def median(self) -> float | None:
        """None where fewer than half were found."""
        tokens = np.where(self.tokens > 0, self.tokens, np.inf)
        return float(np.median(tokens)) if np.isfinite(np.median(tokens)) else None

    @property
    def diagnosed(self) -> float | None:
        found = self.tokens > 0
        return float(self.right[found].mean()) if found.any() else None

    @staticmethod
    def joined(parts: "Sequence[Found]") -> "Found":
        return Found(np.concatenate([one.tokens for one in parts]), np.concatenate([one.right for one in parts]))


OF_EVERY_TOKEN = tuple(name for name in faults.LAWS if name not in ("under-load", "late"))
"""Faults that are the same for every token, so that streams of tokens without replies show them."""


def by_e_alone(fault: str, tokens: int, seed: int, count: int) -> Found:
    world = World.made(3000 + seed)
    course = streams.courses(world.pool, world.draw(world.faulty(fault)), count, tokens, math.log(1000))
    return Found(course.crossed, np.array([_right(fault, ALTERNATIVES[index]) for index in course.likeliest]))


def _right(fault: str, alternative: Alternative | None) -> bool:
    return alternative is not None and fault in faults.FAMILIES.get(alternative.family, ())


def by_verdict(fault: str, tokens: int, seed: int, count: int) -> Found:
    """Tokens of each server until DIFFERENT, looking after every pass."""
    world = World.made(4000 + seed)
    there, elsewhere = world.draw(world.faulty(fault)), world.draw(world.model.p)
    seen = [
        comparison.first(world.compared(_served(fault, there, elsewhere), elsewhere).passes(tokens), "different")
        for _ in range(count)
    ]
    return Found(
        np.array([-1 if one is None else one.tokens for one in seen]),
        np.array([one is not None and _right(fault, one.likeliest) for one in seen]),
    )


def _served(fault: str, there: Draw, elsewhere: Draw) -> Served:
    if fault == "late":
        return where(np.arange(comparison.REPLY) >= faults.LATE, there, elsewhere)
    if fault == "under-load":
        return where(np.array(comparison.LOADS)[:, None] >= faults.BUSY, there, elsewhere)
    return whole(there)


# Lossless comparisons: tokens to equivalent, and how often wrong.


@dataclass(frozen=True, slots=True)
class Compared:
    """different: comparisons that any look called different; equivalent: tokens to the first that called it so, −1."""

    different: int
    equivalent: npt.NDArray[np.int64]

    def reached(self, share: float) -> int | None:
        """Tokens by which this share of the comparisons was called equivalent; None where it was not by the end."""
        ordered = np.sort(np.where(self.equivalent > 0, self.equivalent, np.iinfo(np.int64).max))
        found = int(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
        return found if found <= self.equivalent.max() else None

    @staticmethod
    def joined(parts: "Sequence[Compared]") -> "Compared":
        return Compared(sum(one.different for one in parts), np.concatenate([one.equivalent for one in parts]))


def lossless(tokens: int, floor: bool, seed: int, count: int) -> Compared:
    """floor: both servers sample a little colder than the reference says, which scores with noise besides."""
    world = World.made(5000 + seed, FLOOR_NOISE if floor else 0.0)
    draw = world.draw(faults.heated(world.model.p, FLOOR_TEMPERATURE) if floor else world.model.p)
    different, equivalent = 0, []
    for _ in range(count):
        seen = list(world.compared(whole(draw), draw).passes(tokens))
        different += any(one.outcome == "different" for one in seen)
        first = comparison.first(iter(seen), "equivalent")
        equivalent.append(-1 if first is None else first.tokens)
    return Compared(different, np.array(equivalent))


def at_the_margin(tokens: int, share: float, seed: int, count: int) -> int:
    """Comparisons called equivalent though the candidate's residual is the margin itself, all in this share of the
    replies."""
    world = World.made(6000 + seed)
    settings = plan.load("strict").required["likelihood"].model_dump()
    off, right = (
        world.draw(law) for law in (_exactly_off(world, settings["margin_temperature"] / share), world.model.p)
    )
    seen = (world.compared(sometimes(share, off, right, world.rng), right).passes(tokens) for _ in range(count))
    return sum(comparison.first(passes, "equivalent") is not None for passes in seen)


def _exactly_off(world: World, margin: float) -> Laws:
    """The heated law whose mean likelihood residual is margin · mean variance."""
    d, v = world.pool.d["likelihood"].reshape(CONTEXTS, -1), world.pool.v["likelihood"].reshape(CONTEXTS, -1)[:, 0]

    def off(temperature: float) -> float:
        masses = tables.cell_masses(faults.heated(world.model.p, temperature), world.scored)
        return float((masses * d).sum(axis=1).mean() / v.mean())

    low, high = 0.3, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if off(middle) > margin else (low, middle)
    return faults.heated(world.model.p, high)


def standard_errors(replies: int, seed: int) -> tuple[float, float]:
    """(of the residual likelihood, of the unpaired gap of two sets of replies) over the same simulated replies, in nat
    a token: REPLY tokens each, every prompt's open share drawn from a Beta of mean OPEN_SHARE and κ = 30."""
    rng = np.random.default_rng(seed)
    sets = [_reply_figures(replies, rng) for _ in range(2)]
    residual = sets[0][0].std(ddof=1) / math.sqrt(replies)
    unpaired = math.sqrt(sum(means.var(ddof=1) / replies for _, means in sets))
    return float(residual), float(unpaired)


def _reply_figures(replies: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of each reply its mean residual and its mean log-likelihood."""
    kappa = 30.0
    open_pool, sure_pool = (population.laws(1000, rng, share) for share in (1.0, 0.0))
    p = np.concatenate([open_pool, sure_pool])
    pool = tables.pool(p)
    logp = np.log(np.maximum(p, 1e-300)).ravel()
    draws = [tables.drawing(part, rng) for part in (open_pool, sure_pool)]
    figures = []
    for share in rng.beta(population.OPEN_SHARE * kappa, (1 - population.OPEN_SHARE) * kappa, replies):
        opened = int(rng.binomial(comparison.REPLY, share))
        sure = draws[1](comparison.REPLY - opened) + open_pool.size
        tokens = np.concatenate([draws[0](opened), sure])
        context, rank = np.divmod(tokens, population.VOCABULARY)
        cells = context * (tables.K + 1) + np.minimum(rank, tables.K)
        figures.append((pool.d["likelihood"][cells].mean(), logp[tokens].mean()))
    columns = np.array(figures)
    return columns[:, 0], columns[:, 1]
