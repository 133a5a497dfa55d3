"""Do requests that run at one moment share their randomness? Seen where the engine samples by inverse CDF.

u is uniform for every token of a lossless server, whatever the law (gates.pit), and independent between requests. So
the product of Φ⁻¹(u) of two requests at one position has the mean 0. The part of u that the token does not tell is not
drawn but averaged over: m = E[Φ⁻¹(u) | cell], for the same mean and less noise. Engines walk through a law by falling
chance, or by token id: both orders are tried. Samplers of another kind (Gumbel) leave no trace here: see agreement.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gates.checks import Checked, CheckSettings, Terms, without_data
from gates.evidence import Arm, Evidence, Pass, Reply
from gates.finding import Estimate, Finding
from gates.pit import LEAST_ENTROPY
from gates.residual_check import sampled_otherwise
from gates.residuals import UNKNOWN, Cells, Floats, blocks
from gates.scored import Ints

SEQUENCES = 0
P_VALUES = 1

METHOD = "correlation of Φ⁻¹(u) between concurrent requests at one position, u the PIT; self-normalized sum"

_FEWEST = 50  # pairs of tokens
_MOST_TOKENS = 200_000  # of a server: a seed that is shared shows in a few hundred


class Settings(CheckSettings):
    """It has no margin: it may reject, and passes otherwise."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Of n pairs, in the order that shows more. value: the mean product over the root of the mean squares."""

    value: float
    n: int
    t: float  # the sum of the products over the root of the sum of their squares

    @property
    def p_value(self) -> float:
        """Two-sided, for both orders together. A sum that is normalized by its own squares has no longer tails than
        the normal law, however long those of its terms are."""
        from scipy.special import stdtr

        return min(1.0, 4 * float(stdtr(self.n - 1, -abs(self.t)))) if self.n > 1 else 1.0

    def p_against(self, other: "Correlation") -> float:
        """Of two correlations being one."""
        from scipy.special import ndtr

        if not self.t or not other.t:
            return 1.0
        variance = sum((one.value / one.t) ** 2 for one in (self, other))
        return min(1.0, 4 * float(ndtr(-abs(self.value - other.value) / math.sqrt(variance))))


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    for profile in evidence.profiles:
        if (why := sampled_otherwise(evidence, profile)) is not None:
            return without_data("independence", terms, why)
    own, stock = (correlation(arm) for arm in (evidence.candidate, evidence.stock))
    if min(own.n, stock.n) < _FEWEST:
        return without_data("independence", terms, "hardly any two requests ran at one moment and were scored")
    p_value = max(own.p_value, own.p_against(stock))
    rejects = p_value <= terms.p_value
    finding = Finding(
        check="independence",
        required=terms.required,
        outcome="different" if rejects else "passed",
        estimate=_estimate(own, terms.equivalent),
        stock=_estimate(stock, terms.equivalent),
        says=_says(own, rejects),
    )
    return Checked([finding])


def correlation(arm: Arm) -> Correlation:
    parts = list(_pairs_of(arm))
    m = np.concatenate(parts, axis=2) if parts else np.empty((2, 2, 0))  # (order, side, pair)
    n = m.shape[2]
    products = m[:, 0] * m[:, 1]
    sizes = np.sqrt((products**2).sum(axis=1))
    if not n or not sizes.all():
        return Correlation(0.0, 0, 0.0)
    values = products.sum(axis=1) / np.sqrt((m[:, 0] ** 2).sum(axis=1) * (m[:, 1] ** 2).sum(axis=1))
    t = products.sum(axis=1) / sizes
    most = int(np.argmax(np.abs(t)))
    return Correlation(float(values[most]), n, float(t[most]))


def _pairs_of(arm: Arm) -> Iterator[Floats]:
    tokens = 0
    for one in arm.passes:
        if len(one.scored.rows) and tokens < _MOST_TOKENS:
            tokens += len(one.scored.rows)
            yield _pairs(one)


def _pairs(one: Pass) -> Floats:
    """(order, side, n): m of both requests of each concurrent pair, at positions open on both sides."""
    z, position = normals(one), one.scored.rows["position"]
    starts = np.searchsorted(one.scored.reply, np.arange(len(one.replies) + 1))
    left, right = [], []
    for i, j in concurrent(one.replies):
        of_i, of_j = (position[starts[k] : starts[k + 1]] for k in (i, j))
        _, in_i, in_j = np.intersect1d(of_i, of_j, return_indices=True)
        left.append(starts[i] + in_i)
        right.append(starts[j] + in_j)
    if not left:
        return np.empty((2, 2, 0))
    first, second = np.concatenate(left), np.concatenate(right)
    kept = np.isfinite(z[0, first]) & np.isfinite(z[0, second])
    return np.stack([z[:, first[kept]], z[:, second[kept]]], axis=1)


def concurrent(replies: list[Reply]) -> list[tuple[int, int]]:
    """Neighbours in launch order of which the second was sent while the first ran; each reply in one pair at most."""
    found, i = [], 0
    while i + 1 < len(replies):
        ended, sent = replies[i].end_ns, replies[i + 1].sent_ns
        if ended is not None and sent is not None and sent < ended:
            found.append((i, i + 1))
            i += 1
        i += 1
    return found


def normals(one: Pass) -> Floats:
    """(order, tokens) m, by falling chance and by token id; NaN where the position leaves no choice."""
    out = np.empty((2, len(one.scored.rows)))
    for start, block in blocks(one.scored.rows, one.law):
        part = slice(start, start + len(block.cell))
        p, entropy = _with_other(block)
        both = np.stack([expected_normal(p, block.cell), _by_id(block)])
        out[:, part] = np.where(entropy > LEAST_ENTROPY, both, np.nan)
    return out


def _by_id(block: Cells) -> Floats:
    """`other` lies among the listed ids, nobody knows where: as if evenly, and 0 where the token is of it."""
    order = np.argsort(np.where(block.ids < 0, np.iinfo(np.int32).max, block.ids), axis=1, kind="stable")
    p = np.take_along_axis(block.p / block.p.sum(axis=1, keepdims=True), order, axis=1)
    where = np.argmax(order == block.cell[:, None], axis=1)
    return np.where(block.cell < block.p.shape[1], expected_normal(p, where), 0)


def expected_normal(p: Floats, cell: Ints) -> Floats:
    """E[Φ⁻¹(u) | cell], u uniform over the cell's part of (0, 1): (φ(a) − φ(b))/(Φ(b) − Φ(a)). p: (n, cells)."""
    from scipy.special import ndtri

    rows, cell = np.arange(len(cell)), np.minimum(cell, p.shape[1] - 1)
    above = np.clip(np.cumsum(p, axis=1)[rows, cell], 0, 1)
    width = p[rows, cell]
    edges = ndtri(np.stack([np.clip(above - width, 0, 1), above]))
    density = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray((density[0] - density[1]) / np.maximum(width, 1e-12), np.float64)


def _with_other(block: Cells) -> tuple[Floats, Floats]:
    p = np.concatenate([block.p, np.maximum(block.other, UNKNOWN)[:, None]], axis=1)
    p /= p.sum(axis=1, keepdims=True)
    return p, -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)


def _estimate(found: Correlation, level: float) -> Estimate:
    from scipy.special import stdtrit

    reach = float(stdtrit(found.n - 1, (1 + level) / 2)) * abs(found.value / found.t) if found.t else 1.0
    return Estimate(
        value=found.value,
        low=found.value - reach,
        high=found.value + reach,
        level=level,
        n=found.n,
        unit="correlation",
        method=METHOD,
    )


def _says(own: Correlation, rejects: bool) -> str:
    if rejects:
        return "requests that run at one moment draw alike: as if they shared one seed"
    return f"requests that run at one moment draw independently (correlation {own.value:+.2g})"
