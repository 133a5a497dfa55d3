"""What each planted fault makes of the laws. The names are those of the embedded engine's faults."""

from collections.abc import Callable

import numpy as np

from gates.selftest.population import Laws, disturbed, normalized

DRAFT_SD = 1.0
"""Noise of the drafting model's logits: it agrees with the model about as well as a good small sibling does."""

Law = Callable[[Laws, Laws, np.random.Generator], Laws]
"""(the model's laws, the drafting model's, rng) → those that the faulty server samples from."""


def heated(p: Laws, temperature: float) -> Laws:
    return normalized(p ** (1 / temperature))


def nucleus(p: Laws, mass: float) -> Laws:
    return normalized(np.where(np.cumsum(p, axis=1) - p < mass, p, 0))


def likeliest(p: Laws, k: int) -> Laws:
    return normalized(np.where(np.arange(p.shape[1]) < k, p, 0))


def at_least(p: Laws, share: float) -> Laws:
    return normalized(np.where(p >= share * p[:, :1], p, 0))


def partly_greedy(p: Laws, share: float) -> Laws:
    q = (1 - share) * p
    q[:, 0] += share
    return q


def typical(p: Laws, draft: Laws, epsilon: float = 0.09, delta: float = 0.3) -> Laws:
    """Typical acceptance (Medusa): a drafted token passes where p ≥ min(ε, δ·e^−H), else a fresh token is drawn."""
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1, keepdims=True)
    passed = np.where(p >= np.minimum(epsilon, delta * np.exp(-entropy)), draft, 0)
    return np.asarray(passed + (1 - passed.sum(axis=1, keepdims=True)) * p, np.float64)


def threshold(p: Laws, draft: Laws, least: float) -> Laws:
    """The draft's likeliest token passes for sure where p gives it that much; else speculation is lossless."""
    rows, guess = np.arange(len(p)), draft.argmax(axis=1)
    sure = p[rows, guess] >= least
    q = np.where(sure[:, None], 0, p)
    q[rows[sure], guess[sure]] = 1
    return q


def with_junk(p: Laws, share: float) -> Laws:
    return np.asarray((1 - share) * p + share / p.shape[1], np.float64)


def _at(temperature: float) -> Law:
    return lambda p, draft, rng: heated(p, temperature)


def _noise(sd: float) -> Law:
    return lambda p, draft, rng: disturbed(p, sd, rng)


LAWS: dict[str, Law] = {
    "temperature-0.95": _at(0.95),
    "temperature-0.98": _at(0.98),
    "temperature-1.05": _at(1.05),
    "top-p-0.98": lambda p, draft, rng: nucleus(p, 0.98),
    "top-p-0.95": lambda p, draft, rng: nucleus(p, 0.95),
    "top-k-20": lambda p, draft, rng: likeliest(p, 20),
    "min-p-0.05": lambda p, draft, rng: at_least(p, 0.05),
    "greedy-0.01": lambda p, draft, rng: partly_greedy(p, 0.01),
    "greedy-0.05": lambda p, draft, rng: partly_greedy(p, 0.05),
    "greedy-0.20": lambda p, draft, rng: partly_greedy(p, 0.20),
    "typical": lambda p, draft, rng: typical(p, draft),
    "threshold-0.5": lambda p, draft, rng: threshold(p, draft, 0.5),
    "threshold-0.8": lambda p, draft, rng: threshold(p, draft, 0.8),
    "unverified-0.10": lambda p, draft, rng: 0.9 * p + 0.1 * draft,
    "noise-0.005": _noise(0.229),
    "noise-0.01": _noise(0.324),
    "noise-0.03": _noise(0.57),
    "smaller": lambda p, draft, rng: disturbed(p, 1.0, rng, flatten=0.08),
    "junk-0.001": lambda p, draft, rng: with_junk(p, 0.001),
}

FAMILIES: dict[str, tuple[str, ...]] = {
    "temperature": ("temperature-0.95", "temperature-0.98", "temperature-1.05"),
    "top_p": ("top-p-0.98", "top-p-0.95"),
    "top_k": ("top-k-20",),
    "min_p": ("min-p-0.05",),
    "greedy": ("greedy-0.01", "greedy-0.05", "greedy-0.20"),
    "threshold": ("threshold-0.5", "threshold-0.8"),
    "junk": ("junk-0.001",),
}
"""family of alternatives → the faults that it is the right diagnosis of"""
