"""Where a server returns text alone: both servers' replies of its passes are tokenized again, and scored so.

Their tokens are the reference tokenizer's, not the ones drawn: a text has several ways into tokens, and a model now and
then takes a rare one. A reply that shows it (the text does not come back, or the server counted other tokens) is left
out. That selects by what was drawn, on both servers alike: so stock's text goes the same way although its ids are
known, and what comes out is compared with stock's, and held to no law.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from asyncio_throttle import Throttler  # type: ignore[attr-defined]

from loadgen.endpoint import Opened
from loadgen.record import Record
from loadgen.score import ScoredPass, score_pass
from loadgen.side import posted

Key = tuple[str, str, int]
"""(endpoint's label, profile, pass number)."""

_AT_ONCE = 16

NO_TOKENIZER = "the reference has no /tokenize and /detokenize"
NO_PROMPT = "no server tells the prompt's token ids"
CUT_OFF = "not whole: its last token may be cut"
NOT_TEXT_ALONE = "more than text: reasoning or tool calls"
NOT_BACK = "its tokens give another text"
OTHER_COUNT = "the server counted other tokens"


@dataclass(frozen=True, slots=True)
class _Terms:
    """prompts: (profile, pass number, prompt's id) → its token ids. counted: whether both servers count tokens."""

    reference: Opened
    limit: Throttler | None
    prompts: Mapping[tuple[str, int, str], list[int]]
    counted: bool


def text_alone(records: Sequence[Record]) -> bool:
    """Whether a reply came as text without token ids."""
    return any(record.text and record.token_ids is None for record in records)


def affected(passes: Mapping[Key, Sequence[Record]]) -> dict[Key, Sequence[Record]]:
    """The passes of all servers in which one of them returned text alone."""
    found = {key[1:] for key, records in passes.items() if text_alone(records)}
    return {key: records for key, records in passes.items() if key[1:] in found}


async def score(
    reference: Opened, passes: Mapping[Key, Sequence[Record]], limit: Throttler | None
) -> dict[Key, ScoredPass]:
    """Scores of every server's re-tokenized replies; empty where no server returned text alone.

    passes: of all servers, whole rounds. Raises loadgen.score.ReferenceDied.
    """
    wanted = affected(passes)
    everything = [record for records in wanted.values() for record in records]
    prompts = {
        (record.profile, record.pass_no, record.prompt_id): record.prompt_token_ids
        for record in everything
        if record.prompt_token_ids
    }
    whole = [record for record in everything if _whole(record)]
    counted = all(record.usage is not None and record.usage.completion_tokens is not None for record in whole)
    terms = _Terms(reference, limit, prompts, counted)
    return {key: await _scored(records, terms) for key, records in wanted.items()}


async def _scored(records: Sequence[Record], terms: _Terms) -> ScoredPass:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(record: Record) -> Record | str:
        async with gate:
            return await _retokenized(record, terms)

    found = await asyncio.gather(*(one(record) for record in records))
    scored = await score_pass(terms.reference, [one for one in found if not isinstance(one, str)], terms.limit)
    left_out = Counter(one for one in found if isinstance(one, str))
    return ScoredPass(scored.scores, dict(left_out + Counter(scored.left_out)))


def _whole(record: Record) -> bool:
    return bool(record.text) and record.failure is None and record.finish_reason is not None


async def _retokenized(record: Record, terms: _Terms) -> Record | str:
    """The record with the reference tokenizer's ids, or why it has none. What the server's own ids say is not used."""
    prompt = terms.prompts.get((record.profile, record.pass_no, record.prompt_id))
    if not record.text or not _whole(record):
        return CUT_OFF
    if record.reasoning or record.tool_calls:
        return NOT_TEXT_ALONE
    if prompt is None:
        return NO_PROMPT
    ids = _ids(await _asked(terms, "tokenize", {"prompt": record.text, "add_special_tokens": False}))
    back = await _asked(terms, "detokenize", {"tokens": ids}) if ids else None
    if ids is None or back is None:
        return NO_TOKENIZER
    if back.get("prompt", back.get("text")) != record.text:  # vLLM's name, and SGLang's
        return NOT_BACK
    if terms.counted and len(ids) not in _counts(record):
        return OTHER_COUNT
    return replace(record, prompt_token_ids=prompt, token_ids=ids, flags=[])


def _counts(record: Record) -> tuple[int, ...]:
    """How many tokens the text may be of: the end of a reply is counted, and has no text."""
    told = record.usage.completion_tokens if record.usage else None
    if told is None:
        return ()
    return (told, told - 1) if record.finish_reason == "stop" else (told,)


async def _asked(terms: _Terms, page: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """What the reference's page answers; None where it has none, or refuses."""
    target = terms.reference.target
    if terms.limit is not None:
        await terms.limit.acquire()  # type: ignore[no-untyped-call]
    answer = await posted(terms.reference, target.root_url(page), {"model": target.model, **body})
    try:
        content = orjson.loads(answer.content) if answer.status == 200 else None
    except orjson.JSONDecodeError:
        return None
    return content if isinstance(content, dict) else None


def _ids(content: dict[str, Any] | None) -> list[int] | None:
    tokens = (content or {}).get("tokens")
    fits = isinstance(tokens, list) and all(type(one) is int and 0 <= one < 1 << 31 for one in tokens)
    return tokens if fits else None
