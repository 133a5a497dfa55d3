"""Synthetic servers as the gates see them, without files: replies drawn from tabulated laws and scored exactly."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from factories import Floats, drawn, population, scored
from gates.evidence import Arm, Evidence, Pass, Reply, Role
from gates.scored import Ints, Scored

REPLY = 160  # tokens at most; the last 32 are "tokens 129 on"
CHUNK = 4
EOS = 5  # the id, where a law has one: always among the listed
P = population(np.random.default_rng(5))


@dataclass(frozen=True)
class Law:
    """What a server samples from at positions from `since` on; before them from the reference's own law.

    hazard: the chance of an end at every token, once more times `readiness`; 0: replies break off at REPLY tokens.
    """

    q: Floats
    since: int = 0
    hazard: float = 0.0
    readiness: float = 1.0


LOSSLESS = Law(P)


def with_end(p: Floats, hazard: float) -> Floats:
    """Column EOS becomes the end, of that chance; the others keep their proportions."""
    if not hazard:
        return p
    q = np.delete(p, EOS, axis=1)
    q *= (1 - hazard) / q.sum(axis=1, keepdims=True)
    return np.insert(q, EOS, hazard, axis=1)


def arm(role: Role, law: Law, replies: int, rng: np.random.Generator) -> Arm:
    """One pass of one lane, chunks of CHUNK tokens 1 ms apart."""
    reference, hot = with_end(P, law.hazard), with_end(law.q, law.hazard * law.readiness)
    cold = with_end(P, law.hazard * law.readiness)
    parts = [drawn(cold, replies * law.since, rng), drawn(hot, replies * (REPLY - law.since), rng)]
    contexts, ids = (np.concatenate([part[i].reshape(replies, -1) for part in parts], axis=1) for i in (0, 1))
    lengths = _lengths(ids) if law.hazard else np.full(replies, REPLY)
    logp = np.log(reference)
    rows = [scored(i, logp[contexts[i, :n]], ids[i, :n]) for i, n in enumerate(lengths)]
    kept = [_reply(i, int(n), bool(law.hazard) and ids[i, n - 1] == EOS) for i, n in enumerate(lengths)]
    one = Pass("solo", 0, kept, Scored(np.concatenate(rows), np.repeat(np.arange(replies), lengths), {}), {}, {})
    ends = frozenset({EOS}) if law.hazard else frozenset()
    return Arm(role, role, [one], [], ends)


def _lengths(ids: npt.NDArray[np.int64]) -> Ints:
    ends = ids == EOS
    return np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, REPLY)


def _reply(number: int, tokens: int, stopped: bool) -> Reply:
    chunks = -(-tokens // CHUNK)
    sent = number * 10**9
    sizes = np.full(chunks, CHUNK)
    sizes[-1] = tokens - CHUNK * (chunks - 1)
    return Reply(
        request=number,
        prompt_id=str(number),
        prompt=None,
        lane=0,
        sent_ns=sent,
        end_ns=sent + (chunks + 1) * 10**6,
        chunk_ns=sent + np.arange(1, chunks + 1) * 10**6,
        chunk_tokens=sizes,
        tokens=tokens,
        failure=None,
        stopped=stopped,
    )


def compared(candidate: Law, stock: Law = LOSSLESS, replies: int = 400, seed: int = 1) -> Evidence:
    rng = np.random.default_rng(seed)
    return Evidence(
        stock=arm("stock", stock, replies, rng),
        candidate=arm("candidate", candidate, replies, rng),
        profiles=["solo"],
        open_loop=frozenset(),
        runs=[],
        ended=True,
        whole=True,
        paired=True,
        warnings=[],
    )
