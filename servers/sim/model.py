"""The exact language model: a hash of the whole context picks one of some thousands of next-token distributions.

The rows imitate an 8-billion-parameter model at temperature 1: most positions nearly certain, about a fifth open
(power laws with jitter), mean entropy about 0.7 nat. Every row is known exactly, so is every log-probability.
"""

import functools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from servers.sim.tokenizer import EOS, SAMPLED, VOCABULARY

Rows = NDArray[np.float64]
"""(rows, SAMPLED) probabilities or their logarithms, by token id."""

TOP = 20
"""Alternatives a position whose order is worked out ahead."""

_OPEN_SHARE = 0.215  # of the rows; the others have one token with nearly all the mass
_JITTERED_RANKS = 40
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15 | 1  # odd, so that no bit of an earlier token is lost however long the context
_MIX = 0xBF58476D1CE4E5B9


class Model:
    """Target and draft tables, and the hash that leads from a context to a row of both.

    of_draft: the draft alone, as if it were the target.
    `state` below is the 64-bit hash of a context: start() of the empty one, advance() by one token, row() of it.
    """

    def __init__(
        self, *, seed: int, rows: int, mean_reply_tokens: float, draft_noise: float, of_draft: bool = False
    ) -> None:
        tables, draft, hashing = np.random.SeedSequence(seed).spawn(3)
        self.target: Rows = _target(rows, mean_reply_tokens, np.random.default_rng(tables))
        self._draft_seed, self._draft_noise = draft, draft_noise
        if of_draft:
            self.target = self.draft
        words = np.random.default_rng(hashing).integers(0, 1 << 64, VOCABULARY + 1, dtype=np.uint64)
        self._words: list[int] = words.tolist()
        self._start: int = self._words.pop()

    @functools.cached_property
    def draft(self) -> Rows:
        """The target with frozen noise on its logits: a smaller model that mostly agrees."""
        noise = np.random.default_rng(self._draft_seed).standard_normal(self.target.shape)
        return _softmax(np.log(self.target) + self._draft_noise * noise)

    @functools.cached_property
    def logprobs(self) -> Rows:
        """Natural logarithms of the target's rows: what the engine reports, whatever the sampling settings."""
        return np.log(self.target)

    @functools.cached_property
    def order(self) -> NDArray[np.int64]:
        """(rows, TOP) ids of each row's likeliest tokens, log-probability falling, then id rising."""
        order: NDArray[np.int64] = np.argsort(-self.target, axis=1, kind="stable")[:, :TOP]
        return order

    def start(self) -> int:
        return self._start

    def advance(self, state: int, token: int) -> int:
        return (state * _STEP + self._words[token]) & _MASK

    def row(self, state: int) -> int:
        # The high half only: low bits of a polynomial hash depend on low bits of the words alone.
        mixed = ((state ^ (state >> 32)) * _MIX) & _MASK
        return (mixed >> 32) * len(self.target) >> 32

    def read(self, tokens: Iterable[int], state: int | None = None) -> int:
        """The state after the tokens, from the empty context where none is given."""
        state = self._start if state is None else state
        for token in tokens:
            state = self.advance(state, token)
        return state

    def rows(self, tokens: Sequence[int]) -> list[int]:
        """One row a token: that of the context before it."""
        state, rows = self._start, []
        for token in tokens:
            rows.append(self.row(state))
            state = self.advance(state, token)
        return rows


def _target(rows: int, mean_reply: float, rng: np.random.Generator) -> Rows:
    ranked = _ranked(rows, SAMPLED - 1, rng)
    scattered = rng.permuted(ranked, axis=1)
    hazard = _hazards(rows, 1 / mean_reply, rng)
    table = np.empty((rows, SAMPLED))
    table[:, EOS] = hazard
    table[:, EOS + 1 :] = scattered * (1 - hazard)[:, None]
    return table


def _ranked(rows: int, tokens: int, rng: np.random.Generator) -> Rows:
    """Power laws over the ranks with jitter on the likely ones; where not open, scaled down to a small remainder."""
    ranks = np.arange(1, tokens + 1)
    slope, shift = rng.uniform(1.05, 2.8, (rows, 1)), rng.uniform(0, 2.5, (rows, 1))
    logits = -slope * np.log(ranks + shift)
    logits[:, : _JITTERED_RANKS - 1] += 0.6 * rng.standard_normal((rows, _JITTERED_RANKS - 1))
    law = _softmax(logits)
    closed = rng.random(rows) > _OPEN_SHARE
    remainder = np.where(closed, 10 ** rng.uniform(-6.5, -0.6, rows), 1.0)
    law *= remainder[:, None]
    law[np.arange(rows), law.argmax(axis=1)] += 1 - remainder
    return law


def _hazards(rows: int, mean: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """(rows,) probabilities of the end: tiny nearly everywhere, large where a text may end; their mean is `mean`."""
    tiny = 10 ** rng.uniform(-7, -4, rows)
    ends = max(1, round(2 * mean * rows))
    # Evenly spaced in (0, 1), so that their mean is one half exactly, then trimmed to the mean asked for.
    large = rng.permutation((np.arange(ends) + 0.5) / ends)
    hazards = np.concatenate([large, tiny[ends:]])
    hazards[:ends] *= (mean * rows - tiny[ends:].sum()) / large.sum()
    return rng.permutation(hazards)


def _softmax(logits: Rows) -> Rows:
    weights: Rows = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights
