"""A population of next-token laws like those of an 8-billion-parameter model at temperature 1.

Calibrated to published figures: half of the positions have an entropy under .01 nat, a fifth over .67; the mean entropy
is about .66 nat, the mean variance of log p about 1.06, the mean chance of the likeliest token about .85.
"""

import numpy as np
import numpy.typing as npt

Laws = npt.NDArray[np.float64]
"""(contexts, tokens): each row a law, likeliest token first."""

VOCABULARY = 400
OPEN_SHARE = 0.215
"""Of the positions that leave a real choice; at the others one token has nearly all of the mass."""


def laws(contexts: int, rng: np.random.Generator, open_share: float = OPEN_SHARE) -> Laws:
    """Power laws with jitter; where not open, scaled down to a small remainder beside one sure token."""
    exponent, offset = rng.uniform(1.05, 2.8, (contexts, 1)), rng.uniform(0.0, 2.5, (contexts, 1))
    place = np.arange(1, VOCABULARY + 1)
    jitter = np.where(place < 41, 0.6 * rng.standard_normal((contexts, VOCABULARY)), 0.0)
    weight = np.exp(jitter) * (place + offset) ** -exponent
    weight = np.sort(weight, axis=1)[:, ::-1]
    weight /= weight.sum(axis=1, keepdims=True)
    remainder = np.where(rng.random(contexts) < open_share, 1.0, 10 ** rng.uniform(-6.5, -0.6, contexts))
    weight *= remainder[:, None]
    weight[:, 0] += 1 - remainder
    return weight


def disturbed(p: Laws, sd: float, rng: np.random.Generator, flatten: float = 0.0) -> Laws:
    """The same laws with independent noise on their logits, drawn once: another, frozen, model."""
    logits = (1 - flatten) * np.log(np.maximum(p, 1e-300)) + sd * rng.standard_normal(p.shape)
    return normalized(np.exp(logits - logits.max(axis=1, keepdims=True)))


def normalized(weight: Laws) -> Laws:
    return np.asarray(weight / weight.sum(axis=1, keepdims=True), np.float64)
