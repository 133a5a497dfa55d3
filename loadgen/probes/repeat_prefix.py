"""Many draws at one prefix: they show a frozen error of the model, such as quantization, that single draws hide.

Of a server that does not speculate one token each. One that does never verifies a draft for a first token, so there the
replies are a few tokens long, start a little before the prefix, and are counted wherever several share theirs.
"""

from collections import Counter
from collections.abc import Sequence

from loadgen.probes import Material, asked, in_turn, prefixes
from loadgen.prompts import Prompt
from loadgen.record import Record
from loadgen.request import Request

PREFIXES, DRAWS = 120, 64
"""So many find frozen noise of KL .005 a token nine times in ten at the level that plan strict leaves to it."""

LANES = 32
BEYOND = 2
"""Tokens after the prefix's own, so that a draft may stand there, and not only what follows one."""

LEAST_VISITS = 16
"""Draws at one place of the tree that are worth a scoring request."""


def requests(material: Material) -> list[Request]:
    """Every prefix once, then all again: what a server does to one moment falls on all prefixes alike."""
    lead = prefixes.LEAD if material.speculates else 0
    scored = [one.scores for one in material.seen if one.scores is not None]
    starts = [_prompt(material, start) for start in prefixes.chosen(scored, PREFIXES, lead)]
    starts = starts or prefixes.at_random([record for one in material.seen for record in one.records], material.seed)
    found = [(f"prefix-{i}", prompt) for i, prompt in enumerate(starts) if prompt is not None]
    return [
        Request(
            prompt_id=prompt_id,
            prompt=prompt,
            kind="completions",
            asked=asked(lead + 1 + BEYOND if lead else 1),
            **in_turn(index, LANES),
        )
        for index, (prompt_id, prompt) in enumerate(found * DRAWS)
    ]


def _prompt(material: Material, start: prefixes.Start) -> Prompt | None:
    for seen in material.seen:
        for record in seen.records:
            if int(record.id[:16], 16) == start.request and record.prompt_token_ids and record.token_ids:
                return Prompt(token_ids=record.prompt_token_ids + record.token_ids[: start.position - start.lead])
    return None


def to_score(records: Sequence[Record]) -> list[Record]:
    """So few of the replies that every place with many draws is on the way of one: its law is the same for all."""
    visits = Counter((record.prompt_id, place) for record in records for place in places(record))
    wanted = {place for place, count in visits.items() if count >= LEAST_VISITS}
    kept = []
    for record in sorted(records, key=lambda record: -len(record.token_ids or ())):
        covered = wanted & {(record.prompt_id, place) for place in places(record)}
        if covered:
            kept.append(record)
            wanted -= covered
    return kept


def places(record: Record) -> list[tuple[int, ...]]:
    """What the reply had drawn before each of its tokens."""
    ids = record.token_ids or []
    return [tuple(ids[:n]) for n in range(len(ids))]
