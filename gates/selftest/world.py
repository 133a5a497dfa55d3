"""One population and the servers that sample from it, whole replies at a time."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates import plan
from gates.selftest import comparison, faults, population, tables
from gates.selftest.comparison import Comparison, Rules, Served, Server
from gates.selftest.population import Laws, Model
from gates.selftest.tables import Draw, Pool

CONTEXTS = 4000


@dataclass(frozen=True, slots=True)
class World:
    """One population: as sampled from, and as the reference scores it."""

    model: Model
    scored: Laws
    pool: Pool
    rng: np.random.Generator

    @staticmethod
    def made(seed: int, scorer_noise: float = 0.0) -> "World":
        rng = np.random.default_rng(seed)
        p = population.laws(CONTEXTS, rng)
        draft = population.disturbed(p, faults.DRAFT_SD, rng)
        scored = population.disturbed(p, scorer_noise, rng) if scorer_noise else p
        ends = population.ends(p, 1 / comparison.REPLY, rng)
        return World(Model(p, draft, ends), scored, tables.pool(p, scored, ends), rng)

    def draw(self, q: Laws) -> Draw:
        return tables.drawing(tables.cell_masses(q, self.scored), self.rng)

    def faulty(self, fault: str) -> Laws:
        return faults.LAWS[fault](self.model, self.rng)

    def compared(self, candidate: Served, stock: Draw) -> Comparison:
        rules = Rules(plan.load("strict"))
        arms = (Server(self.pool, candidate, "candidate", self.rng), Server(self.pool, whole(stock), "stock", self.rng))
        return Comparison(*arms, rules)


SHAPE = (len(comparison.LOADS), comparison.REPLY)


def whole(draw: Draw) -> Served:
    """All of every reply by one law."""
    return lambda: draw(SHAPE[0] * SHAPE[1]).reshape(SHAPE)


def where(inside: npt.NDArray[np.bool_], there: Draw, elsewhere: Draw) -> Served:
    """inside: of SHAPE, or what can be stretched to it: the tokens that are drawn by the law `there`."""
    of_pass = np.broadcast_to(inside, SHAPE)

    def serve() -> npt.NDArray[np.int64]:
        cells = whole(elsewhere)()
        cells[of_pass] = there(int(of_pass.sum()))
        return cells

    return serve


def sometimes(share: float, there: Draw, elsewhere: Draw, rng: np.random.Generator) -> Served:
    """This share of the replies, whichever they are, by the law `there`."""

    def serve() -> npt.NDArray[np.int64]:
        return where(rng.random((SHAPE[0], 1)) < share, there, elsewhere)()

    return serve
