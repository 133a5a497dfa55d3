"""From a row of the model to a token: the sampling settings, the draw, and exact speculative verification."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servers.sim.model import Rows
from servers.sim.tokenizer import EOS

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How rows are changed before a token is drawn, under vLLM's names and in vLLM's order."""

    temperature: float = 1.0  # 0 is greedy: the likeliest token, the lowest id among equals
    min_p: float = 0.0  # 0 is off
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    eos_masked: bool = False  # while a reply is shorter than its min_tokens

    def without_eos(self) -> "Sampling":
        return dataclasses.replace(self, eos_masked=True)


class Law(NamedTuple):
    """A distribution over token ids: (SAMPLED,) probabilities and their cumulative sum, which ends at 1 exactly."""

    p: Vector
    cumulative: Vector


class Laws:
    """The rows of one table under one sampling setting, each worked out when it is first visited."""

    def __init__(self, table: Rows, sampling: Sampling) -> None:
        self._table, self._sampling = table, sampling
        self._known: dict[int, Law] = {}

    def __getitem__(self, row: int) -> Law:
        law = self._known.get(row)
        if law is None:
            law = self._known[row] = law_of(shaped(self._table[row], self._sampling))
        return law


def shaped(p: Vector, sampling: Sampling) -> Vector:
    """The row as it is sampled: temperature, min_p, top_k, top_p, each on what the one before left."""
    if sampling.eos_masked:
        p = p.copy()
        p[EOS] = 0
    if sampling.temperature == 0:
        return _certain(int(p.argmax()), len(p))
    if sampling.temperature != 1:
        with np.errstate(divide="ignore"):  # what is masked stays at probability 0
            logits = np.log(p) / sampling.temperature
        p = np.exp(logits - logits.max())
    if sampling.min_p > 0:
        p = np.where(p >= sampling.min_p * p.max(), p, 0)
    if 0 < sampling.top_k < len(p):
        p = _likeliest(p, sampling.top_k)
    if sampling.top_p < 1:
        p = _nucleus(p, sampling.top_p)
    return normalized(p)


def normalized(p: Vector) -> Vector:
    law: Vector = p / p.sum()
    return law


def _certain(token: int, tokens: int) -> Vector:
    p = np.zeros(tokens)
    p[token] = 1
    return p


def _falling(p: Vector) -> NDArray[np.int64]:
    """Ids by falling probability, the lowest first among equals."""
    return np.argsort(-p, kind="stable")


def _only(p: Vector, kept: NDArray[np.int64]) -> Vector:
    left = np.zeros_like(p)
    left[kept] = p[kept]
    return left


def _likeliest(p: Vector, count: int) -> Vector:
    return _only(p, _falling(p)[:count])


def _nucleus(p: Vector, mass: float) -> Vector:
    """The fewest likely tokens that hold the mass, at least one."""
    order = _falling(p)
    falling = normalized(p[order])
    return _only(p, order[np.cumsum(falling) - falling < mass])


def law_of(p: Vector) -> Law:
    cumulative = np.cumsum(p)
    cumulative /= cumulative[-1]
    return Law(p, cumulative)


def draw(law: Law, rng: np.random.Generator) -> int:
    """By inverse CDF. side="right": a token of probability 0 has no width, and is never hit."""
    return int(law.cumulative.searchsorted(rng.random(), side="right"))


def verified(
    drafted: Sequence[int], target: Sequence[Law], draft: Sequence[Law], rng: np.random.Generator
) -> list[int]:
    """What K drafted tokens become: the accepted ones and one more, distributed exactly as the target's laws.

    target holds K + 1 laws and draft K, each in the context of the drafted tokens before it. Token x is accepted
    with probability min(1, p(x)/q(x)); the first rejected one is replaced by a draw from (p − q)+, and where all are
    accepted one more is drawn from p (Leviathan et al. 2023, Chen et al. 2023).
    """
    for position, token in enumerate(drafted):
        p, q = target[position].p, draft[position].p
        if rng.random() * q[token] >= p[token]:
            return [*drafted[:position], draw(residual(target[position], draft[position]), rng)]
    return [*drafted, draw(target[len(drafted)], rng)]


def residual(target: Law, draft: Law) -> Law:
    """(p − q)+, normalized; p itself where rounding leaves nothing of it."""
    left = np.maximum(target.p - draft.p, 0)
    return law_of(normalized(left)) if left.any() else target
