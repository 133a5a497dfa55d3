"""A population of next-token laws like those of an 8-billion-parameter model at temperature 1.

Calibrated to published figures: half of the positions have an entropy under .01 nat, a fifth over .67; the mean entropy
is about .66 nat, the mean variance of log p about 1.06, the mean chance of the likeliest token about .85.
"""

from dataclasses import dataclass

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


Ends = npt.NDArray[np.int64]
"""(contexts,) the column that ends a reply, −1 where none of a context's does."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a server samples from: its model's laws, its drafting model's, and where replies may end."""

    p: Laws
    draft: Laws
    ends: Ends


def ends(p: Laws, hazard: float, rng: np.random.Generator, among: int = 10) -> Ends:
    """Contexts in which one of the likeliest `among` tokens ends the reply: as many as make its mean chance `hazard`.

    Contexts that are sure of another token are passed over, as there it could hardly come.
    """
    column = rng.integers(among, size=len(p))
    chance = p[np.arange(len(p)), column]
    order = rng.permutation(np.flatnonzero(p[:, 0] < 0.7))
    some = order[np.cumsum(chance[order]) <= hazard * len(p)]
    found = np.full(len(p), -1)
    found[some] = column[some]
    return found


def disturbed(p: Laws, sd: float, rng: np.random.Generator, flatten: float = 0.0) -> Laws:
    """The same laws with independent noise on their logits, drawn once: another, frozen, model."""
    logits = (1 - flatten) * np.log(np.maximum(p, 1e-300)) + sd * rng.standard_normal(p.shape)
    return normalized(np.exp(logits - logits.max(axis=1, keepdims=True)))


def normalized(weight: Laws) -> Laws:
    return np.asarray(weight / weight.sum(axis=1, keepdims=True), np.float64)
