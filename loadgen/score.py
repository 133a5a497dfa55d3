"""Teacher forcing: the reference server's log-probabilities for the tokens that an endpoint emitted."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from asyncio_throttle import Throttler  # type: ignore[attr-defined]

from loadgen import next_token
from loadgen.dialects import Scored
from loadgen.endpoint import Opened
from loadgen.record import SCORE_DTYPE, SCORED_TOP_K, Record
from loadgen.side import read_posted

if TYPE_CHECKING:
    import numpy as np

    Scores = np.ndarray[Any, np.dtype[np.void]]

_AT_ONCE = 16
REQUESTS_PER_S = 200
"""Ceiling on scoring requests: side traffic must not become a load test of the reference."""


class CannotScore(Exception):
    """The reference answers, but gives no prompt log-probabilities: a verdict then says undecided, and why."""


@dataclass(frozen=True, slots=True)
class ScoredPass:
    """scores: a structured array of SCORE_DTYPE, a row a token. left_out: reason → replies that lack some or all."""

    scores: "Scores"
    left_out: dict[str, int]


def request_key(record_id: str) -> int:
    """The scores' `request` field: the first 16 hex digits of the record's id."""
    return int(record_id[:16], 16)


def throttle(per_s: int = REQUESTS_PER_S) -> Throttler:
    return Throttler(rate_limit=per_s, period=1.0)


async def check_reference(reference: Opened) -> Opened:
    """The reference with the way in which it scores, by two small requests. Raises CannotScore or ReferenceDied."""
    answer = await prompt_scores(reference, [1, 2, 3])
    if not isinstance(answer, str):
        if any(answer):
            return reference
        answer = "200, and null for every position"
    told = await next_token.scored(reference, [1, 2], 3)
    if not isinstance(told, str):
        return replace(reference, by_next_token=True)
    raise CannotScore(
        f"{reference.endpoint.label} ({reference.endpoint.public()['url']}) cannot score: asked for the prompt "
        f"log-probabilities of three token ids, it came back with: {answer}. Asked for those of one token that it "
        f"samples: {told}. Give a server that can with --reference (stock vLLM does); without one no reply can be "
        f"judged."
    )


async def score_pass(
    reference: Opened,
    records: Sequence[Record],
    limit: Throttler | None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> ScoredPass:
    """Scores every reply of one pass, each once, whatever its end. Raises ReferenceDied.

    `limit` None: no ceiling, as under a virtual clock (the throttle itself reads the wall clock).
    """
    import numpy as np

    gate = asyncio.Semaphore(_AT_ONCE)
    left_out: dict[str, int] = {}
    parts: list[Scores] = []
    done = 0

    async def one(record: Record) -> None:
        nonlocal done
        async with gate:
            part, why = await _score_reply(reference, record, limit)
        if why is not None:
            left_out[why] = left_out.get(why, 0) + 1
        if part is not None:
            parts.append(part)
        done += 1
        progress(done, len(records))

    await _all(one(record) for record in records)
    scores = np.concatenate(parts) if parts else np.empty(0, np.dtype(SCORE_DTYPE))
    return ScoredPass(scores, left_out)


async def _all(work: Iterable[Any]) -> None:
    """Like gather, but the first failure cancels the rest and is raised as itself."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _score_reply(
    reference: Opened, record: Record, limit: Throttler | None
) -> "tuple[Scores | None, str | None]":
    """The reply's scores, and why there are none or not all."""
    if not record.token_ids:
        return None, "no token ids" if record.text else "no reply"
    if "token_ids_incomplete" in record.flags:
        return None, "token ids incomplete"  # what follows a gap would be scored as if it were not there
    if not record.prompt_token_ids:
        return None, "no prompt token ids"
    ids = record.prompt_token_ids + record.token_ids
    longest = reference.served.max_model_len
    if longest is not None:
        ids = ids[: longest - 1]  # a scoring request generates one token itself
    first = len(record.prompt_token_ids)
    if reference.by_next_token:
        found, refusal = await next_token.scores(reference, record, ids[:first], ids[first:], limit)
        why = f"at some places: {refusal}" if refusal is not None and any(found) else refusal
        return as_array(record.id, ids[first:], found), why
    if limit is not None:
        await limit.acquire()  # type: ignore[no-untyped-call]
    answer = await prompt_scores(reference, ids, first)
    return (None, answer) if isinstance(answer, str) else (as_array(record.id, ids[first:], answer[first:]), None)


async def prompt_scores(server: Opened, ids: list[int], first: int = 0) -> list[Scored | None] | str:
    """One score a position, None before `first`; or the server's refusal, in its words.

    A prompt is often longer than its reply, and reading twenty numbers a position is most of the work here.
    Raises ReferenceDied, CannotScore.
    """
    target = server.target
    body = target.dialect.score_body(ids, target.model)
    if body is None:
        return f"dialect {target.dialect.NAME} has no way to ask for prompt log-probabilities"
    lacking = "no prompt log-probabilities in the answer"
    scores = await read_posted(server, "scores", body, lambda told: target.dialect.read_scores(told, first), lacking)
    return scores if isinstance(scores, str) else _unfit(ids, scores) or scores


def _unfit(ids: Sequence[int], scores: Sequence[Scored | None]) -> str | None:
    """Why these are no scores of the tokens asked about: taken for such, they would judge something else."""
    if len(scores) != len(ids):
        return f"{len(scores)} scores for {len(ids)} tokens"
    for token_id, score in zip(ids, scores, strict=True):
        if score is None:
            continue
        if score.token_id != token_id:
            return "scores of other tokens than those sent: it has another tokenizer, or puts something around a prompt"
        if (why := score.unfit()) is not None:
            return why
    return None


def as_array(record_id: str, ids: Sequence[int], scores: Sequence[Scored | None]) -> "Scores":
    """Rows of SCORE_DTYPE for one reply. A position that the reference left out has logprob NaN and ids of −1."""
    import numpy as np

    rows = np.zeros(len(ids), np.dtype(SCORE_DTYPE))
    rows["request"] = request_key(record_id)
    rows["position"] = np.arange(len(ids))
    rows["token_id"] = ids
    rows["logprob"], rows["ids"], rows["logprobs"] = np.nan, -1, -np.inf
    for row, score in enumerate(scores):
        if score is not None:
            top = sorted(score.top, key=lambda entry: (-entry[1], entry[0]))[:SCORED_TOP_K]
            rows["logprob"][row] = score.logprob
            rows["ids"][row, : len(top)] = [token_id for token_id, _ in top]
            rows["logprobs"][row, : len(top)] = [logprob for _, logprob in top]
    return rows
