"""A fixed pool of contexts as tables: what each statistic and each alternative says of every cell of every context.

Made by the production functions, a cell at a time, so that streams are mere lookups and take minutes instead of days.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates import pit, residuals
from gates.alternatives import log_ratios
from gates.residuals import UNKNOWN, Cells, Floats
from gates.selftest.population import VOCABULARY, Ends, Laws

K = 20
EOS = VOCABULARY  # the id of the token that ends a reply; other tokens have their column's
STATISTICS: dict[str, residuals.Statistic] = {
    "likelihood": residuals.likelihood,
    "first_choice": residuals.first_choice,
    "first_choice_weighted": residuals.first_choice_weighted,
    "tail": residuals.tail,
    "junk": residuals.junk,
    "junk_weighted": residuals.junk_weighted,
    "eos": residuals.eos(frozenset({EOS})),
}


@dataclass(frozen=True, slots=True)
class Pool:
    """Cells lie flat: context · (K + 1) + cell. log_ratios: (cells, J); d, v: statistic → (cells,); v is the same for
    all cells of a context. below, mass: (cells,) of the PIT, that of the likelier cells and its own; open: (contexts,)
    whether a context leaves choice enough for it."""

    contexts: int
    log_ratios: npt.NDArray[np.float32]
    d: dict[str, Floats]
    v: dict[str, Floats]
    below: Floats
    mass: Floats
    open: npt.NDArray[np.bool_]


def pool(p: Laws, scorer: Laws | None = None, ends: Ends | None = None) -> Pool:
    """scorer: the laws as the reference scores them, where they are not exactly those it samples from. ends: where
    replies may end; nowhere when left out.

    Cells are ordered by the scorer; its order of ids must be that of p's columns, as it is where noise is small, or the
    cell masses are to be taken with `cell_masses` and the same scorer.
    """
    scored = p if scorer is None else scorer
    order = _order(scored)
    listed = np.take_along_axis(scored, order[:, :K], axis=1)
    ids = order[:, :K].astype(np.int32)
    if ends is not None:
        ids[(ends >= 0)[:, None] & (ids == ends[:, None])] = EOS
    by_cell = [_cells(listed, ids, cell) for cell in range(K + 1)]
    d, v = {}, {}
    for name, statistic in STATISTICS.items():
        columns = [statistic(block) for block in by_cell]
        d[name] = np.stack([column[0] for column in columns], axis=1).ravel()
        v[name] = np.stack([column[1] for column in columns], axis=1).ravel()
    ratios = np.stack([log_ratios(block) for block in by_cell], axis=1)
    mass = np.concatenate([listed, np.maximum(1 - listed.sum(axis=1, keepdims=True), UNKNOWN)], axis=1)
    mass /= mass.sum(axis=1, keepdims=True)
    entropy = -(mass * np.log(np.maximum(mass, 1e-300))).sum(axis=1)
    return Pool(
        contexts=len(p),
        log_ratios=ratios.reshape(-1, ratios.shape[2]).astype(np.float32),
        d=d,
        v=v,
        below=(np.cumsum(mass, axis=1) - mass).ravel(),
        mass=mass.ravel(),
        open=entropy > pit.LEAST_ENTROPY,
    )


def _cells(listed: Floats, ids: npt.NDArray[np.int32], cell: int) -> Cells:
    with np.errstate(divide="ignore"):
        logp = np.log(listed)
    return Cells(logp, listed, np.maximum(1 - listed.sum(axis=1), 0), np.full(len(listed), cell), ids)


def _order(scored: Laws) -> npt.NDArray[np.int64]:
    return np.argsort(-scored, axis=1, kind="stable")


def cell_masses(q: Laws, scored: Laws) -> Floats:
    """(contexts, K + 1): the chance of each of the scorer's cells under the law q that is sampled from."""
    listed = np.take_along_axis(q, _order(scored)[:, :K], axis=1)
    return np.concatenate([listed, np.maximum(1 - listed.sum(axis=1, keepdims=True), 0)], axis=1)


Draw = Callable[[int], npt.NDArray[np.int64]]
"""n → (n,) flat cells, independent"""


def drawing(masses: Floats, rng: np.random.Generator) -> Draw:
    """Every context equally often, a cell by its mass: Walker's alias method, one lookup a token."""
    accept, alias = _alias(masses.ravel() / masses.sum())

    def draw(n: int) -> npt.NDArray[np.int64]:
        cell = rng.integers(len(accept), size=n)
        return np.where(rng.random(n) < accept[cell], cell, alias[cell])

    return draw


def _alias(p: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Vose's construction: each of n columns holds one outcome and, above its acceptance, one other."""
    n = len(p)
    scaled = p * n
    accept, alias = np.ones(n), np.arange(n)
    small, large = list(np.flatnonzero(scaled < 1)), list(np.flatnonzero(scaled >= 1))
    while small and large:
        low, high = small.pop(), large[-1]
        accept[low], alias[low] = scaled[low], high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    return accept, alias
