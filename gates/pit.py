"""Do tokens fall evenly over their distributions? The randomised probability integral transform.

u = (mass of the likelier cells) + U·(mass of its own) is uniform on (0, 1) for a lossless server, whatever the law.
Neyman's smooth test (1937) with TERMS Legendre polynomials: Σ_j (Σ_t φ_j(u_t))²/n is χ² with as many degrees.
"""

from dataclasses import dataclass

import numpy as np

from gates.residuals import UNKNOWN, Cells, Floats

TERMS = 4
LEAST_ENTROPY = 0.3
"""nat; positions under it are as good as certain, and would only dilute the others."""


@dataclass(slots=True)
class Uniformity:
    """sums: (TERMS,) Σ φ_j(u) over n tokens of open positions."""

    sums: Floats
    n: int = 0

    @staticmethod
    def empty() -> "Uniformity":
        return Uniformity(np.zeros(TERMS))

    def feed(self, block: Cells, rng: np.random.Generator) -> None:
        u = transformed(block, rng)
        self.sums = self.sums + legendre(u).sum(axis=0)
        self.n += len(u)

    @property
    def p_value(self) -> float:
        """1 where there is nothing to test."""
        from scipy.special import chdtrc

        return float(chdtrc(TERMS, float((self.sums**2).sum()) / self.n)) if self.n else 1.0

    def p_against(self, other: "Uniformity") -> float:
        """Of two samples having one mean of every φ_j, be it zero or not."""
        from scipy.special import chdtrc

        if not self.n or not other.n:
            return 1.0
        gap = self.sums / self.n - other.sums / other.n
        return float(chdtrc(TERMS, float((gap**2).sum()) / (1 / self.n + 1 / other.n)))


def transformed(block: Cells, rng: np.random.Generator) -> Floats:
    """u of the tokens at open positions."""
    other = np.maximum(block.other, UNKNOWN)
    p = np.concatenate([block.p, other[:, None]], axis=1)
    p /= p.sum(axis=1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    drawn = rng.random(len(entropy))  # for all positions: which are open must not move the others' draws
    rows = np.arange(len(entropy))
    u = np.cumsum(p, axis=1)[rows, block.cell] - (1 - drawn) * p[rows, block.cell]
    return np.asarray(u[entropy > LEAST_ENTROPY], np.float64)


def legendre(u: Floats) -> Floats:
    """(n,) on (0, 1) → (n, TERMS): orthonormal polynomials of degree 1 … TERMS."""
    x = 2 * u - 1
    shifted = [x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2, (35 * x**4 - 30 * x**2 + 3) / 8]
    return np.stack([np.sqrt(2 * j + 1) * values for j, values in enumerate(shifted, 1)], axis=1)
