"""What a client's clock is worth: its replies held against the stamps of the server that sent them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from peers import Reply
from truths import Sent


@dataclass(frozen=True, slots=True)
class Errors:
    """Client minus server, in milliseconds; None where the client does not keep what it takes."""

    replies: int
    ttft_mean_ms: float
    ttft_p99_ms: float
    chunk_p50_ms: float | None
    chunk_p99_ms: float | None
    chunk_max_ms: float | None
    itl_sd_added_ms: float | None
    shared: float | None  # share of the chunks that came in one read with another
    server_ttft_mean_ms: float
    server_itl_sd_ms: float


def errors(replies: Sequence[Reply], sent: Sequence[Sent]) -> Errors:
    """Replies without an id are paired with the requests in the order of sending: a swapped pair of neighbours moves
    an error by no more than the server's own differ. Requests that no reply belongs to (warm-up) are left out.

    Raises ValueError where replies and requests cannot be paired.
    """
    pairs = _paired(replies, sent)
    ttft = np.array([reply.ttft_ms - one.ttft_ms for reply, one in pairs])
    stamps = [
        arrived - left
        for reply, one in pairs
        if reply.chunk_ns is not None
        for arrived, left in zip(reply.chunk_ns, one.chunk_ns, strict=True)
    ]
    chunks = np.array(stamps) / 1e6 if stamps else None
    gaps = [gap for reply, _ in pairs for gap in reply.gaps_ms or ()]
    server_sd = _sd([(after - before) / 1e6 for _, one in pairs for before, after in pairwise(one.chunk_ns)])
    shared = [reply.shared for reply, _ in pairs if reply.shared is not None]
    return Errors(
        replies=len(pairs),
        ttft_mean_ms=float(ttft.mean()),
        ttft_p99_ms=float(np.percentile(ttft, 99)),
        chunk_p50_ms=None if chunks is None else float(np.percentile(chunks, 50)),
        chunk_p99_ms=None if chunks is None else float(np.percentile(chunks, 99)),
        chunk_max_ms=None if chunks is None else float(chunks.max()),
        itl_sd_added_ms=_sd(gaps) - server_sd if gaps else None,
        shared=sum(shared) / len(stamps) if shared and stamps else None,
        server_ttft_mean_ms=float(np.mean([one.ttft_ms for _, one in pairs])),
        server_itl_sd_ms=server_sd,
    )


def _paired(replies: Sequence[Reply], sent: Sequence[Sent]) -> list[tuple[Reply, Sent]]:
    if not replies:
        raise ValueError("the client reports no successful request")
    if all(reply.id is not None for reply in replies):
        by_id = {one.id: one for one in sent}
        missing = [reply.id for reply in replies if reply.id not in by_id]
        if missing:
            raise ValueError(f"the server never saw {len(missing)} of the requests that the client reports")
        return [(reply, by_id[reply.id or ""]) for reply in replies]
    if len(sent) < len(replies):
        raise ValueError(f"the client reports {len(replies)} requests, the server saw {len(sent)}")
    return list(zip(replies, sent[len(sent) - len(replies) :], strict=True))


def _sd(values: Sequence[float]) -> float:
    return float(np.std(values)) if values else 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU = start + requests · request + chunks · chunk, from three runs that differ in one at a time."""

    start_s: float
    request_us: float
    chunk_us: float


def costs(few: tuple[int, int, float], longer: tuple[int, int, float], more: tuple[int, int, float]) -> Costs:
    """Each run as (requests, chunks a request, CPU seconds); `longer` has more chunks, `more` more requests."""
    requests, chunks, few_s = few
    chunk_s = (longer[2] - few_s) / (requests * (longer[1] - chunks))
    request_s = (more[2] - few_s) / (more[0] - requests) - chunks * chunk_s
    return Costs(few_s - requests * (request_s + chunks * chunk_s), request_s * 1e6, chunk_s * 1e6)
