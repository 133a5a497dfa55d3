"""Synthetic runs: replies drawn from tabulated distributions, scored exactly, written as a run is written."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.record import (
    SCORE_DTYPE,
    SCORED_TOP_K,
    Anchor,
    Failure,
    FailureKind,
    Record,
    Run,
    RunWriter,
    Telemetry,
    Usage,
)

Floats = npt.NDArray[np.float64]

ANCHOR = Anchor(host="h", boot_id=None, monotonic_ns=0, realtime_ns=0, error_ns=0, stamps="virtual")
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
PROMPT_IDS = [1, 2, 3]


def population(rng: np.random.Generator, n: int = 3000, size: int = 120) -> Floats:
    """(n, size) next-token distributions, likeliest first: three of four nearly certain, the others open.

    Mean variance of log p about 1, as real models have it at temperature 1.
    """
    steepness = rng.uniform(1.0, 2.5, (n, 1))
    p = np.sort(np.arange(1, size + 1) ** -steepness * rng.lognormal(0, 0.7, (n, size)), axis=1)[:, ::-1]
    p /= p.sum(axis=1, keepdims=True)
    rest = np.where(rng.random((n, 1)) < 0.75, 10 ** rng.uniform(-5, -1, (n, 1)), 1.0)
    p = p * rest
    p[:, 0] += 1 - rest[:, 0]
    return np.asarray(p, np.float64)


def heated(p: Floats, temperature: float) -> Floats:
    q = p ** (1 / temperature)
    return np.asarray(q / q.sum(axis=1, keepdims=True), np.float64)


def greedy_mix(p: Floats, share: float) -> Floats:
    q = p * (1 - share)
    q[:, 0] += share
    return q


@dataclass(frozen=True)
class Server:
    """How a synthetic server behaves."""

    sampling: Callable[[Floats], Floats] = lambda p: p  # the reference's distributions → those it samples from
    token_ms: float = 10.0  # a lane's time a token
    per_chunk: int = 1
    failing: float = 0.0  # share of requests cut off after half of their tokens
    failure: FailureKind = "connection_reset"
    returns_ids: bool = True
    scored: bool = True
    drafts: bool = False  # whether it has counters of speculation
    peak_mib: float | None = None
    prompt_ids: tuple[int, ...] = (1, 2, 3)


SLOW = Server()
FAST = Server(token_ms=5.0, per_chunk=4, drafts=True)
WARM = Server(sampling=lambda p: heated(p, 0.9), token_ms=5.0)


@dataclass(frozen=True)
class Shape:
    profiles: dict[str, int] = field(default_factory=lambda: {"solo": 1, "team": 4})  # name → lanes
    passes: int = 3
    requests: int = 80  # a pass
    mean_tokens: int = 40
    sampling: dict[str, Any] = field(default_factory=lambda: dict(NEUTRAL))
    ended: str | None = "done"  # end.json's reason; None leaves it out
    drained: bool = True  # whether the last pass has its closing border
    seed: int = 1


def comparison(
    path: Path,
    rng: np.random.Generator,
    stock: Server = SLOW,
    candidate: Server = FAST,
    shape: Shape | None = None,
) -> Run:
    """A compare run of `stock` and `candidate`, in path (which must not exist)."""
    shape = shape or Shape()
    return _written(
        path, rng, {"stock": stock, "candidate": candidate}, shape, {"stock": "stock", "candidate": "candidate"}
    )


def single(path: Path, rng: np.random.Generator, server: Server = SLOW, shape: Shape | None = None) -> Run:
    """A run of one endpoint, labelled `endpoint`."""
    return _written(path, rng, {"endpoint": server}, shape or Shape(), None)


def _written(
    path: Path, rng: np.random.Generator, servers: dict[str, Server], shape: Shape, roles: dict[str, str] | None
) -> Run:
    writer = RunWriter(path, _asked(servers, shape, roles), ANCHOR)
    p = population(rng)
    logp, samplers = np.log(p), {label: server.sampling(p) for label, server in servers.items()}
    clock = 1_000_000_000
    for pass_no in range(shape.passes):
        for profile, lanes in shape.profiles.items():
            for label, server in servers.items():
                place = _Place(label, profile, pass_no, lanes, clock)
                clock = _pass(writer, place, server, (samplers[label], logp), rng, shape)
    for label, server in servers.items():
        if server.peak_mib is not None:
            values = {"peak_mib": server.peak_mib, "total_mib": 100_000.0, "utilization": None}
            writer.telemetry(
                Telemetry(kind="memory", at_ns=clock, endpoint=label, profile=None, pass_no=None, values=values)
            )
    writer.end(shape.ended or "done", {})  # type: ignore[arg-type]
    if shape.ended is None:
        (path / "end.json").unlink()
    return Run.open(path)


def _asked(servers: dict[str, Server], shape: Shape, roles: dict[str, str] | None) -> dict[str, Any]:
    return {
        "command": "compare" if roles else "run",
        "created": "2026-01-01T00:00:00Z",
        "version": "0",
        "host": {},
        "seed": shape.seed,
        "plan": None,
        "passes": shape.passes,
        "order": "abba",
        "profiles": {
            name: {"digest": "0", "lanes": lanes, "sampling": shape.sampling, "prompts": {"source": "builtin"}}
            for name, lanes in shape.profiles.items()
        },
        "endpoints": {
            label: {"url": f"http://127.0.0.1/{label}", "model": "m", "dialect": "vllm", "served": {}}
            for label in servers
        },
        "roles": roles,
        "reference": "stock" if roles else None,
        "submission": None,
    }


@dataclass(frozen=True)
class _Place:
    label: str
    profile: str
    pass_no: int
    lanes: int
    start_ns: int


def _pass(
    writer: RunWriter,
    place: _Place,
    server: Server,
    tables: tuple[Floats, Floats],
    rng: np.random.Generator,
    shape: Shape,
) -> int:
    """Writes one pass and gives the moment it ended."""
    lengths = 1 + rng.negative_binomial(4, 4 / (3 + shape.mean_tokens), shape.requests)
    rows, tokens = drawn(tables[0], int(lengths.sum()), rng)
    failed = rng.random(shape.requests) < server.failing
    lengths = np.where(failed, np.maximum(lengths // 2, 1), lengths)
    border = Telemetry(
        kind="border",
        at_ns=place.start_ns,
        endpoint=place.label,
        profile=place.profile,
        pass_no=place.pass_no,
        edge="start",
        values={"drafts": 0, "accepted_tokens": 0} if server.drafts else {},
    )
    writer.telemetry(border)
    free = [place.start_ns] * place.lanes
    starts = np.cumsum(lengths) - lengths
    scores, chunks = [], 0
    for index in range(shape.requests):
        part = slice(starts[index], starts[index] + lengths[index])
        record = _record(place, server, rng, tokens[part], bool(failed[index]), (index, free[index % place.lanes]))
        assert record.end_ns is not None
        free[index % place.lanes] = record.end_ns
        chunks += len(record.chunk_ns)
        writer.record(record)
        scores.append(scored(int(record.id[:16], 16), tables[1][rows[part]], tokens[part]))
    if server.scored:
        writer.scores(place.label, place.profile, place.pass_no, np.concatenate(scores))
    end = max(free)
    if shape.drained or (place.pass_no, place.profile) != (shape.passes - 1, list(shape.profiles)[-1]):
        values = {"drafts": chunks, "accepted_tokens": int(lengths.sum()) - chunks} if server.drafts else {}
        writer.telemetry(dataclasses.replace(border, at_ns=end, edge="end", values=values))
    return end


def drawn(q: Floats, n: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(contexts, tokens): n draws, each from a row of q taken at random."""
    rows = rng.integers(len(q), size=n)
    below = np.cumsum(q, axis=1)
    tokens = np.empty(n, np.int64)
    for start in range(0, n, 1 << 13):
        part = slice(start, start + (1 << 13))
        tokens[part] = (below[rows[part]] < rng.random((len(rows[part]), 1))).sum(axis=1)
    return rows, np.minimum(tokens, q.shape[1] - 1)


def scored(request: int, logp: Floats, tokens: npt.NDArray[np.int64]) -> np.ndarray[Any, np.dtype[np.void]]:
    """What a reference gives for one reply: logp (n, size) of each position, falling; a token's id is its column."""
    rows = np.empty(len(tokens), SCORE_DTYPE)
    rows["request"], rows["position"], rows["token_id"] = request, np.arange(len(tokens)), tokens
    rows["logprob"] = logp[np.arange(len(tokens)), tokens]
    rows["ids"], rows["logprobs"] = np.arange(SCORED_TOP_K), logp[:, :SCORED_TOP_K]
    return rows


def _record(
    place: _Place,
    server: Server,
    rng: np.random.Generator,
    tokens: npt.NDArray[np.int64],
    failed: bool,
    at: tuple[int, int],
) -> Record:
    index, sent = at
    n = len(tokens)
    sizes = [server.per_chunk] * (n // server.per_chunk) + ([n % server.per_chunk] if n % server.per_chunk else [])
    stamps = (sent + np.cumsum(sizes) * server.token_ms * 1e6).astype(np.int64).tolist()
    return Record(
        id=rng.bytes(16).hex(),
        endpoint=place.label,
        profile=place.profile,
        pass_no=place.pass_no,
        lane=index % place.lanes,
        phase="timed",
        prompt_id=f"{place.profile}-{place.pass_no}-{index}",
        asked={"max_tokens": 512, **NEUTRAL},
        sent_ns=sent,
        first_byte_ns=stamps[0],
        end_ns=stamps[-1] + 1,
        chunk_ns=stamps,
        chunk_tokens=list(sizes) if server.returns_ids else [None] * len(sizes),
        chunk_ambiguous=[False] * len(sizes),
        status=200,
        prompt_token_ids=list(server.prompt_ids) if server.returns_ids else None,
        token_ids=tokens.tolist() if server.returns_ids else None,
        text="x" * n,
        finish_reason=None if failed else "stop",
        usage=None if failed else Usage(prompt_tokens=3, completion_tokens=n),
        failure=Failure(kind=server.failure, detail="synthetic") if failed else None,
    )
