"""What each planted fault makes of the laws. The names are those of the embedded engine's faults."""

from collections.abc import Callable

import numpy as np

from gates.selftest.population import Ends, Laws, Model, disturbed, normalized

DRAFT_SD = 1.0
"""Noise of the drafting model's logits: it agrees with the model about as well as a good small sibling does."""

Law = Callable[[Model, np.random.Generator], Laws]
"""(what the server has, rng) → the laws that it samples from."""


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


def hurried(p: Laws, ends: Ends, times: float) -> Laws:
    """Ends so many times as readily."""
    q, rows = p.copy(), np.flatnonzero(ends >= 0)
    before = p[rows, ends[rows]]
    after = np.minimum(times * before, 1)
    q[rows] *= ((1 - after) / np.maximum(1 - before, 1e-300))[:, None]
    q[rows, ends[rows]] = after
    return q


def _at(temperature: float) -> Law:
    return lambda model, rng: heated(model.p, temperature)


def _noise(sd: float) -> Law:
    return lambda model, rng: disturbed(model.p, sd, rng)


COLD = 0.9  # the temperature of the faults that have one and do not name it

LAWS: dict[str, Law] = {
    "temperature-0.95": _at(0.95),
    "temperature-0.98": _at(0.98),
    "temperature-1.05": _at(1.05),
    "top-p-0.98": lambda model, rng: nucleus(model.p, 0.98),
    "top-p-0.95": lambda model, rng: nucleus(model.p, 0.95),
    "top-k-20": lambda model, rng: likeliest(model.p, 20),
    "min-p-0.05": lambda model, rng: at_least(model.p, 0.05),
    "greedy-0.01": lambda model, rng: partly_greedy(model.p, 0.01),
    "greedy-0.05": lambda model, rng: partly_greedy(model.p, 0.05),
    "greedy-0.20": lambda model, rng: partly_greedy(model.p, 0.20),
    "typical": lambda model, rng: typical(model.p, model.draft),
    "threshold-0.5": lambda model, rng: threshold(model.p, model.draft, 0.5),
    "threshold-0.8": lambda model, rng: threshold(model.p, model.draft, 0.8),
    "unverified-0.10": lambda model, rng: 0.9 * model.p + 0.1 * model.draft,
    "noise-0.005": _noise(0.229),
    "noise-0.01": _noise(0.324),
    "noise-0.03": _noise(0.57),
    "smaller": lambda model, rng: disturbed(model.p, 1.0, rng, flatten=0.08),
    "junk-0.001": lambda model, rng: with_junk(model.p, 0.001),
    "under-load": _at(COLD),
    "late": _at(COLD),
    "dishonest": _at(COLD),
    "short": lambda model, rng: hurried(model.p, model.ends, 1.3),
}

BUSY = 8  # requests in flight from which on `under-load` cheapens
LATE = 128  # tokens into a reply from which on `late` does

BETWEEN_REPLIES = ("same-seed", "replay")
"""Every token of these is drawn as it should be: it takes two replies to one prompt to see them."""

NO_STATISTIC = ("dropped", "usage", "bundled")
"""Faults that no token shows."""

NAMES: tuple[str, ...] = (*LAWS, *BETWEEN_REPLIES, *NO_STATISTIC)

FAMILIES: dict[str, tuple[str, ...]] = {
    "temperature": ("temperature-0.95", "temperature-0.98", "temperature-1.05", "under-load", "late", "dishonest"),
    "top_p": ("top-p-0.98", "top-p-0.95"),
    "top_k": ("top-k-20",),
    "min_p": ("min-p-0.05",),
    "greedy": ("greedy-0.01", "greedy-0.05", "greedy-0.20"),
    "threshold": ("threshold-0.5", "threshold-0.8"),
    "junk": ("junk-0.001",),
}
"""family of alternatives → the faults that it is the right diagnosis of"""
