"""Scores by a reference that tells nothing of a prompt, but the log-probabilities of the token that it samples itself.

Each place of a reply is then a request: what came before it, and one token. That is dear, so only a share of the places
is asked about. Which ones is drawn for each place apart, before its token is known: so many of each reply would choose
more often where replies end early, and so by what was drawn. A place that the reference refuses is left out alone, for
the same reason: left out whole, replies would go the more often the longer they are.
"""

import math
from typing import TYPE_CHECKING

from asyncio_throttle import Throttler  # type: ignore[attr-defined]

from loadgen.dialects import Scored
from loadgen.endpoint import Opened
from loadgen.record import Record
from loadgen.side import read_posted

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARE = 0.25
"""Of the places of timed replies."""

FIRST = 16
"""Places of a probe's reply, which is read place after place from the first on."""

REPORTED = 64
"""Places of a reply that was asked for its own log-probabilities: these are few, and tell by runs of 16 tokens."""

_STREAM = 1  # apart from other draws of the same record's key


def drawn(record: Record, length: int) -> "Sequence[int]":
    """The places of a reply that are asked about, rising."""
    import numpy as np

    if record.probe == "logprobs":  # the others of its pass are the load beside those that report
        return range(min(length, REPORTED) if record.asked.get("logprobs") is not None else 0)
    if record.phase == "probe":
        return range(min(length, FIRST))
    chance = np.random.default_rng([int(record.id[:16], 16), _STREAM]).random(length)
    return [int(place) for place in np.flatnonzero(chance < SHARE)]


async def scores(
    reference: Opened, record: Record, prompt: list[int], ids: list[int], limit: Throttler | None
) -> tuple[list[Scored | None], str | None]:
    """One a token of the reply, None where it was not asked about or refused; and the first refusal.

    Raises ReferenceDied.
    """
    found: list[Scored | None] = [None] * len(ids)
    refusal: str | None = None
    for place in drawn(record, len(ids)):
        if limit is not None:
            await limit.acquire()  # type: ignore[no-untyped-call]
        answer = await scored(reference, prompt + ids[:place], ids[place])
        if isinstance(answer, str):
            refusal = refusal or answer
        else:
            found[place] = answer
    return found, refusal


async def scored(server: Opened, before: list[int], token_id: int) -> Scored | str:
    """The token at its place as the server sees it, by what it lists when it samples there itself; or its refusal.

    Raises ReferenceDied.
    """
    target = server.target
    body = target.dialect.next_body(before, target.model)
    if body is None:
        return f"dialect {target.dialect.NAME} lists no ids of alternatives"
    lacking = "no alternatives to the token that it sampled"
    listed = await read_posted(server, "completions", body, target.dialect.read_next, lacking)
    if isinstance(listed, str):
        return listed
    found = Scored(token_id, dict(listed).get(token_id, math.nan), listed)
    return found.unfit() or found
