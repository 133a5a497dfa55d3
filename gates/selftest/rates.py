"""How often the gates err, and how many tokens they take: each figure from many streams, spread over processes."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gates.alternatives import ALTERNATIVES
from gates.selftest import faults, population, streams, tables
from gates.selftest.population import Laws
from gates.selftest.tables import Draw, Pool

CONTEXTS = 4000
BOUNDS = (20.0, 100.0, 1000.0)
"""of E; a lossless stream may pass each with a chance of one over it."""

REPLIES_A_PASS = 5
AT_A_TIME = 50  # comparisons a task
FLOOR_TEMPERATURE, FLOOR_NOISE = 0.985, 0.3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """One population: p as sampled from, scored as the reference gives it."""

    p: Laws
    draft: Laws
    scored: Laws
    pool: Pool
    rng: np.random.Generator

    @staticmethod
    def made(seed: int, scorer_noise: float = 0.0) -> "World":
        rng = np.random.default_rng(seed)
        p = population.laws(CONTEXTS, rng)
        draft = population.disturbed(p, faults.DRAFT_SD, rng)
        scored = population.disturbed(p, scorer_noise, rng) if scorer_noise else p
        return World(p, draft, scored, tables.pool(p, scored), rng)

    def draw(self, q: Laws) -> Draw:
        return tables.drawing(tables.cell_masses(q, self.scored), self.rng)


def spread(task: Callable[[int, int], T], total: int, each: int, processes: int) -> Iterator[T]:
    """task(seed, count) for counts that add up to the total; every task has a seed of its own."""
    counts = [min(each, total - start) for start in range(0, total, each)]
    if processes < 2:
        yield from (task(seed, count) for seed, count in enumerate(counts))
        return
    with ProcessPoolExecutor(processes) as executor:
        yield from executor.map(task, range(len(counts)), counts)


def allowed(streams: int, rate: float) -> float:
    """The most of so many that a true rate brings but in one of a thousand selftests."""
    from scipy.special import bdtr

    counts = np.arange(streams + 1)
    return float(counts[np.searchsorted(bdtr(counts, streams, rate), 0.999)])


# Lossless streams: how large E becomes by chance.


def plain_sups(tokens: int, scorer_noise: float, seed: int, count: int) -> npt.NDArray[np.float64]:
    world = World.made(1000 + seed, scorer_noise)
    return streams.courses(world.pool, world.draw(world.p), count, tokens, math.inf).sup


def chunked_sups(tokens: int, sampled: bool, seed: int, count: int) -> npt.NDArray[np.float64]:
    """Of a lossless speculator, over its chunk indices. sampled: drafts are drawn, else the argmax."""
    world = World.made(2000 + seed)
    k = tables.K
    p, guess = tables.cell_masses(world.p, world.scored), tables.cell_masses(world.draft, world.scored)
    if not sampled:
        top = guess.argmax(axis=1)
        guess = np.zeros_like(guess)
        guess[np.arange(len(top)), top] = 1
    passed = np.minimum(p, guess)
    # Per context: its cells as accepted drafts, then as what is drawn where a draft was rejected.
    masses = np.concatenate([passed, p - passed], axis=1)
    flat = np.arange(CONTEXTS)[:, None] * (k + 1) + np.tile(np.arange(k + 1), 2)[None, :]
    accepted = np.tile(np.repeat([True, False], k + 1), CONTEXTS)
    pool = Pool(CONTEXTS, world.pool.log_ratios[flat.ravel()], {}, {})
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


def by_e_alone(fault: str, tokens: int, seed: int, count: int) -> Found:
    world = World.made(3000 + seed)
    q = faults.LAWS[fault](world.p, world.draft, world.rng)
    course = streams.courses(world.pool, world.draw(q), count, tokens, math.log(1000))
    return Found(course.crossed, np.array([_right(fault, index) for index in course.likeliest]))


def _right(fault: str, alternative: int) -> bool:
    return fault in faults.FAMILIES.get(ALTERNATIVES[alternative].family, ())


def by_verdict(fault: str, tokens: int, seed: int, count: int) -> Found:
    """Tokens an arm until DIFFERENT, looking after every pass."""
    world = World.made(4000 + seed)
    q = faults.LAWS[fault](world.p, world.draft, world.rng)
    found, right = [], []
    for _ in range(count):
        candidate, stock = (streams.Arm(world.pool, world.draw(law)) for law in (q, world.p))
        found.append(_first(candidate, stock, "different", tokens))
        right.append(_right(fault, int(np.argmax(candidate.log_totals))))
    return Found(np.array(found), np.array(right))


def _first(candidate: streams.Arm, stock: streams.Arm, wanted: str, tokens: int) -> int:
    """Tokens an arm at the first look that says what is wanted; −1 where none does."""
    for seen, outcome in streams.passes(candidate, stock, REPLIES_A_PASS, tokens):
        if outcome == wanted:
            return seen
    return -1


# Lossless comparisons: tokens to equivalent, and how often wrong.


@dataclass(frozen=True, slots=True)
class Compared:
    """different: comparisons that any look called different; equivalent: tokens to the first that called it so, −1."""

    different: int
    equivalent: npt.NDArray[np.int64]

    @staticmethod
    def joined(parts: "Sequence[Compared]") -> "Compared":
        return Compared(sum(one.different for one in parts), np.concatenate([one.equivalent for one in parts]))


def lossless(tokens: int, floor: bool, seed: int, count: int) -> Compared:
    """floor: both servers sample a little colder than the reference says, which scores with noise besides."""
    world = World.made(5000 + seed, FLOOR_NOISE if floor else 0.0)
    law = faults.heated(world.p, FLOOR_TEMPERATURE) if floor else world.p
    draw = world.draw(law)
    different, equivalent = 0, []
    for _ in range(count):
        outcomes = list(
            streams.passes(streams.Arm(world.pool, draw), streams.Arm(world.pool, draw), REPLIES_A_PASS, tokens)
        )
        different += any(outcome == "different" for _, outcome in outcomes)
        equivalent.append(next((seen for seen, outcome in outcomes if outcome == "equivalent"), -1))
    return Compared(different, np.array(equivalent))


def at_the_margin(tokens: int, share: float, seed: int, count: int) -> int:
    """Comparisons called equivalent though the candidate's residual is the margin itself, all in this share of the
    replies."""
    world = World.made(6000 + seed)
    hot = _exactly_off(world, streams.MARGINS["likelihood"] / share)
    draws = [world.draw(law) for law in (hot, world.p)]
    called = 0
    for _ in range(count):
        mixed = partial(_mixed, draws, share, world.rng)
        candidate, stock = streams.Arm(world.pool, mixed), streams.Arm(world.pool, draws[1])
        called += _first(candidate, stock, "equivalent", tokens) > 0
    return called


def _mixed(draws: Sequence[Draw], share: float, rng: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
    """Whole replies of the one law or the other."""
    replies = n // streams.REPLY
    off = rng.random(replies) < share
    cells = draws[1](n).reshape(replies, streams.REPLY)
    if off.any():
        cells[off] = draws[0](int(off.sum()) * streams.REPLY).reshape(-1, streams.REPLY)
    return cells.ravel()


def _exactly_off(world: World, margin: float) -> Laws:
    """The heated law whose mean likelihood residual is margin · mean variance."""
    d, v = world.pool.d["likelihood"].reshape(CONTEXTS, -1), world.pool.v["likelihood"].reshape(CONTEXTS, -1)[:, 0]

    def off(temperature: float) -> float:
        masses = tables.cell_masses(faults.heated(world.p, temperature), world.scored)
        return float((masses * d).sum(axis=1).mean() / v.mean())

    low, high = 0.3, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if off(middle) > margin else (low, middle)
    return faults.heated(world.p, high)


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
        opened = int(rng.binomial(streams.REPLY, share))
        sure = draws[1](streams.REPLY - opened) + open_pool.size
        tokens = np.concatenate([draws[0](opened), sure])
        context, rank = np.divmod(tokens, population.VOCABULARY)
        cells = context * (tables.K + 1) + np.minimum(rank, tables.K)
        figures.append((pool.d["likelihood"][cells].mean(), logp[tokens].mean()))
    columns = np.array(figures)
    return columns[:, 0], columns[:, 1]
