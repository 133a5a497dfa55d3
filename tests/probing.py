"""Probes as the gates see them, without files: replies drawn from tabulated laws, scored exactly, reported honestly."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from factories import Floats, scored
from gates.checks import Levels, Terms
from gates.evidence import Arm, Evidence, Pass, Reply, Role
from gates.probes import Probed, key
from gates.scored import Ints, Rows, Scored
from loadgen.record import SCORED_TOP_K, Logprob, Probe, Record

ONE = Levels(reject=1e-4, gap=2.5e-4, outside=1e-4)
TERMS = Terms(required=True, pooled=ONE, profile=ONE, p_value=2.5e-5, equivalent=0.95, replies=100, profile_replies=30)
OFTEN = dataclasses.replace(TERMS, p_value=0.05)


def padded(p: Floats) -> Floats:
    """(n, 24) laws of a few tokens: the others have no chance worth the name, and stand beyond what is listed."""
    out = np.full((len(p), 24), 1e-30)
    out[:, : p.shape[1]] = p
    return out


def record(number: int, kind: Probe, prompt_id: str, ids: Sequence[int] | None, **changes: Any) -> Record:
    given: dict[str, Any] = {
        "id": f"{number:016x}" + "0" * 16,
        "endpoint": "stock",
        "profile": "solo",
        "pass_no": 0,
        "lane": 0,
        "phase": "probe",
        "probe": kind,
        "prompt_id": prompt_id,
        "asked": {},
        "sent_ns": number,
        "prompt_token_ids": [1, 2, 3],
        "token_ids": None if ids is None else list(ids),
    }
    return Record(**given | changes)


def rows_of(found: Record, logp: Floats) -> Rows:
    """What the reference says of the record's tokens. logp: (n, size) of each position, falling."""
    return scored(key(found), logp, np.array(found.token_ids, np.int64))


def probed(records: Sequence[Record], laws: Sequence[Floats]) -> Probed:
    """laws: each record's (n, size) log-probabilities, token ids being columns."""
    return Probed(
        tuple(records), {key(one): rows_of(one, logp) for one, logp in zip(records, laws, strict=True) if one.token_ids}
    )


def told(ids: Sequence[int], logp: Floats) -> list[Logprob]:
    """A server's own account of its tokens, with as many alternatives as the reference gives."""
    return [
        Logprob(
            token_id=token,
            token=None,
            logprob=float(law[token]),
            top=[(other, None, float(law[other])) for other in range(SCORED_TOP_K)],
        )
        for token, law in zip(ids, logp, strict=True)
    ]


def sampled(q: Floats, rng: np.random.Generator) -> Ints:
    """One token of each row."""
    return np.asarray(np.minimum((np.cumsum(q, axis=1) < rng.random((len(q), 1))).sum(axis=1), q.shape[1] - 1))


def arm(role: Role, kind: Probe | None = None, found: Probed | None = None, passes: Sequence[Pass] = ()) -> Arm:
    probes = {} if kind is None or found is None else {(str(role), kind): found}
    return Arm(role, role, list(passes), [], probes=probes)


def evidence(stock: Arm, candidate: Arm) -> Evidence:
    return Evidence(
        stock=stock,
        candidate=candidate,
        profiles=["solo"],
        open_loop=frozenset(),
        runs=[],
        ended=True,
        whole=True,
        paired=True,
        warnings=[],
    )


def both(kind: Probe, stock: Probed, candidate: Probed) -> Evidence:
    return evidence(arm("stock", kind, stock), arm("candidate", kind, candidate))


def one_pass(replies: Sequence[tuple[int, int]], tokens: Sequence[Ints], laws: Sequence[Floats]) -> Pass:
    """replies: (sent_ns, end_ns) of each; laws: its (n, size) log-probabilities."""
    kept = [
        Reply(
            request=number,
            prompt_id=str(number),
            prompt=None,
            lane=number,
            sent_ns=sent,
            end_ns=end,
            chunk_ns=np.array([end]),
            chunk_tokens=np.array([len(ids)]),
            tokens=len(ids),
            failure=None,
        )
        for number, ((sent, end), ids) in enumerate(zip(replies, tokens, strict=True))
    ]
    rows = [scored(number, logp, ids) for number, (ids, logp) in enumerate(zip(tokens, laws, strict=True))]
    owner = np.repeat(np.arange(len(rows)), [len(one) for one in rows])
    return Pass("solo", 0, kept, Scored(np.concatenate(rows), owner, {}), {}, {})
