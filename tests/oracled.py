"""Synthetic servers beside an oracle, as the gates see them: replies from tabulated laws, scored by two models."""

import dataclasses

import numpy as np

from arms import REPLY, P, _reply
from factories import Floats, drawn, scored
from gates import oracles
from gates.evidence import Arm, Evidence, Pass, Role
from gates.scored import Rows, Scored
from gates.selftest.population import disturbed
from loadgen.record import SCORE_DTYPE, SCORED_TOP_K

NAME = "draft"
Q = disturbed(P, 1.2, np.random.default_rng(9), flatten=0.1)
"""The draft's laws, by the same contexts and columns as P's."""


def unverified(share: float) -> Floats:
    return np.asarray((1 - share) * P + share * Q, np.float64)


def told(q: Floats, tokens: np.ndarray) -> Rows:
    """What an oracle of these laws (n, size) gives for each token, a token's id being its column."""
    rows = np.zeros(len(tokens), SCORE_DTYPE)
    order = np.argsort(-q, axis=1, kind="stable")[:, :SCORED_TOP_K]
    rows["token_id"], rows["logprob"] = tokens, np.log(q[np.arange(len(tokens)), tokens])
    rows["ids"], rows["logprobs"] = order, np.log(np.take_along_axis(q, order, axis=1))
    return rows


def arm(role: Role, law: Floats, replies: int, rng: np.random.Generator, oracle: Floats | None) -> Arm:
    contexts, ids = drawn(law, replies * REPLY, rng)
    owner = np.repeat(np.arange(replies), REPLY)
    rows = scored(0, np.log(P)[contexts], ids)
    rows["position"] = np.tile(np.arange(REPLY), replies)
    kept = [_reply(number, REPLY, False) for number in range(replies)]
    one = Pass("solo", 0, kept, Scored(rows, owner, {}), {}, {})
    if oracle is None:
        return Arm(role, role, [one], [])
    seen = oracles.Told(told(oracle[contexts], ids), np.arange(len(ids)))
    return Arm(role, role, [dataclasses.replace(one, oracles={NAME: seen})], [], oracles=(NAME,))


def compared(
    candidate: Floats, stock: Floats = P, replies: int = 100, seed: int = 1, oracle: Floats | None = Q
) -> Evidence:
    rng = np.random.default_rng(seed)
    return Evidence(
        stock=arm("stock", stock, replies, rng, oracle),
        candidate=arm("candidate", candidate, replies, rng, oracle),
        profiles=["solo"],
        open_loop=frozenset(),
        runs=[],
        ended=True,
        whole=True,
        paired=True,
        warnings=[],
    )
