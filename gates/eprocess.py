"""The mixture e-process over the named alternatives: evidence that one may look at at any time, and a diagnosis.

E_n = mean_j Π_t r_j(c_t)/p(c_t) is a nonnegative supermartingale under the reference's law, so P(sup E ≥ 1/α) ≤ α
(Ville 1939). Its largest term names the fault that the tokens look like most.
"""

import math
from dataclasses import dataclass

import numpy as np

from gates.alternatives import ALTERNATIVES, Alternative
from gates.residuals import Floats


@dataclass(slots=True)
class EProcess:
    """Fed with (n, J) log ratios in launch order. totals: (J,) Σ of each; log_sup: the largest log E so far;
    alternatives: (J,) what they stand for, equal weights each."""

    totals: Floats
    log_sup: float = 0.0
    alternatives: tuple[Alternative, ...] = ALTERNATIVES

    @staticmethod
    def empty(alternatives: tuple[Alternative, ...] = ALTERNATIVES) -> "EProcess":
        return EProcess(np.zeros(len(alternatives)), alternatives=alternatives)

    def feed(self, log_ratios: Floats) -> None:
        if len(log_ratios):
            running = self.totals + np.cumsum(log_ratios, axis=0)
            self.log_sup = max(self.log_sup, float(log_mean_exp(running).max()))
            self.totals = running[-1]

    @property
    def log_e(self) -> float:
        return float(log_mean_exp(self.totals[None, :])[0])

    def rejects(self, alpha: float) -> bool:
        return self.log_sup >= math.log(1 / alpha)

    @property
    def likeliest(self) -> Alternative:
        return self.alternatives[int(np.argmax(self.totals))]


def log_mean_exp(logs: Floats) -> Floats:
    """(n, J) → (n,)"""
    highest = logs.max(axis=1)
    return np.asarray(highest + np.log(np.exp(logs - highest[:, None]).mean(axis=1)), np.float64)
