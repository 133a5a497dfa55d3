"""Streams over a pool: how far the e-process rises, and when it passes a bound."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates.alternatives import ALTERNATIVES
from gates.eprocess import log_mean_exp
from gates.residuals import Floats
from gates.selftest.tables import Draw, Pool

BATCH = 100  # streams at a time
EVERY = 50  # tokens worked on at once

CLOSE = -0.5
"""log E from which on every token is looked at. Only E that rises from below it to 20 and falls back, all within EVERY
tokens, would be missed."""


@dataclass(frozen=True, slots=True)
class Course:
    """E of many streams, looked at after every token. sup: (streams,) the largest log E; crossed: (streams,) tokens
    until it passed the bound, −1 where it never did; likeliest: (streams,) the alternative that led then (or at the
    end)."""

    sup: npt.NDArray[np.float64]
    crossed: npt.NDArray[np.int64]
    likeliest: npt.NDArray[np.int64]


def courses(pool: Pool, draw: Draw, streams: int, tokens: int, bound: float) -> Course:
    """bound: of log E, at least log 20. Streams go on to their end."""
    parts = [_courses(pool, draw, min(BATCH, streams - start), tokens, bound) for start in range(0, streams, BATCH)]
    fields = ("sup", "crossed", "likeliest")
    return Course(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


def _courses(pool: Pool, draw: Draw, streams: int, tokens: int, bound: float) -> Course:
    totals, log_e = np.zeros((streams, len(ALTERNATIVES))), np.zeros(streams)
    sup, crossed = np.zeros(streams), np.full(streams, -1)
    likeliest = np.zeros(streams, np.int64)
    for seen in range(0, tokens, EVERY):
        ratios = pool.log_ratios[draw(streams * EVERY)].reshape(streams, EVERY, -1)
        after = totals + ratios.sum(axis=1, dtype=np.float64)
        log_after = log_mean_exp(after)
        near = np.flatnonzero(np.maximum(log_e, log_after) > CLOSE)
        if len(near):
            path = _path(totals[near], ratios[near])
            sup[near] = np.maximum(sup[near], path.max(axis=1))
            passes = near[(crossed[near] < 0) & (path.max(axis=1) >= bound)]
            crossed[passes] = seen + 1 + (path >= bound).argmax(axis=1)[np.isin(near, passes)]
            likeliest[passes] = after[passes].argmax(axis=1)
        totals, log_e = after, log_after
    running = crossed < 0
    likeliest[running] = totals[running].argmax(axis=1)
    return Course(sup, crossed, likeliest)


def _path(totals: Floats, ratios: npt.NDArray[np.float32]) -> Floats:
    """(streams, J) before and (streams, tokens, J) of each token → (streams, tokens) log E behind each token."""
    running = totals[:, None, :] + np.cumsum(ratios, axis=1, dtype=np.float64)
    return log_mean_exp(running.reshape(-1, running.shape[2])).reshape(running.shape[:2])


LOOKS = 250
"""Blocks of EVERY tokens worked on at once."""


def chunked_courses(
    pool: Pool, draw: Draw, accepted: npt.NDArray[np.bool_], drafts: int, streams: int, tokens: int
) -> npt.NDArray[np.float64]:
    """(streams,) the largest log of the mean over chunk indices of E: the e-process over that stratum, looked at every
    EVERY tokens (the verdict looks after every pass).

    draw gives flat outcomes of which `accepted` says whether the drafted token passed, and `pool` what they are worth.
    """
    found = []
    for _ in range(streams):
        sums = np.zeros((drafts + 1, len(ALTERNATIVES)))
        since, sup = 0, 0.0
        for start in range(0, tokens, LOOKS * EVERY):
            outcomes = draw(min(LOOKS * EVERY, tokens - start))
            index, since = _chunk_index(accepted[outcomes], drafts, since)
            running = sums + np.cumsum(_by_look(pool, outcomes, index, drafts + 1), axis=0)
            of_places = log_mean_exp(running.reshape(-1, running.shape[2])).reshape(running.shape[:2])
            sup, sums = max(sup, float(log_mean_exp(of_places).max())), running[-1]
        found.append(sup)
    return np.array(found)


def _by_look(pool: Pool, outcomes: npt.NDArray[np.int64], index: npt.NDArray[np.int64], places: int) -> Floats:
    """(looks, places, J): Σ of log ratios over the tokens of each place between two looks."""
    key = np.arange(len(outcomes)) // EVERY * places + index
    order = np.argsort(key, kind="stable")
    keys, starts = np.unique(key[order], return_index=True)
    sums = np.zeros(((len(outcomes) - 1) // EVERY * places + places, len(ALTERNATIVES)))
    sums[keys] = np.add.reduceat(pool.log_ratios[outcomes[order]], starts, axis=0, dtype=np.float64)
    return sums.reshape(-1, places, sums.shape[1])


def _chunk_index(accepted: npt.NDArray[np.bool_], drafts: int, since: int) -> tuple[npt.NDArray[np.int64], int]:
    """A chunk ends with a rejected draft, or with the token that is drawn behind all accepted ones."""
    place = np.arange(len(accepted))
    last = np.maximum.accumulate(np.where(accepted, -1, place))
    before = np.concatenate([[-1], last[:-1]])
    distance = np.where(before < 0, place + since, place - before - 1)
    end = int(distance[-1]) + 1 if accepted[-1] else 0
    return distance % (drafts + 1), end % (drafts + 1)
