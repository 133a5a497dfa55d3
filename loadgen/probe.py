"""Probe passes: driven on both endpoints once the timed ones have ended, and scored by the reference like them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen import probes
from loadgen.client import Place
from loadgen.compare import Finished, ProgressDisplay
from loadgen.drive import Clock, Crew, Part
from loadgen.endpoint import EndpointError, Opened
from loadgen.probes import OPEN_LOOP_LANES, Material, Seen, fixed_text, repeat_prefix
from loadgen.profile import Profile
from loadgen.record import Probe, Record
from loadgen.request import Request
from loadgen.score import prompt_scores
from loadgen.side import ReferenceDied, Unreachable, side_post

if TYPE_CHECKING:
    from loadgen.probes import Scores

_MORE_THAN_ONE = 1.05  # tokens a chunk; a client that lags has a few merged for it

Score = Callable[[str, Sequence[Record]], Awaitable["Scores"]]
"""(title, records) → their scores."""


@dataclass(frozen=True, slots=True)
class Probing:
    """Everything that probes are sent and kept by. sides: stock first. reference: None where none can score."""

    sides: Sequence[Opened]
    reference: Opened | None
    crew: Crew
    clock: Clock
    shown: ProgressDisplay
    write: Callable[[Record], None]
    score: Score
    keep: Callable[[str, Probe, "Scores"], None]


class Gathering:
    """What the first round of timed passes leaves for the probes."""

    def __init__(self, profiles: Sequence[Profile], stock: str, seed: int) -> None:
        self._profiles = {profile.name: profile for profile in profiles}
        self._stock, self._seed = stock, seed
        self._seen: dict[str, Seen] = {}
        self._chunks = self._tokens = 0
        self._says_so = False

    def add(self, finished: Finished, scores: "Scores | None") -> None:
        if finished.endpoint != self._stock:
            for record in finished.records:
                known = [count for count in record.chunk_tokens if count is not None]
                self._chunks, self._tokens = self._chunks + len(known), self._tokens + sum(known)
                self._says_so |= record.speculation is not None
        elif finished.profile not in self._seen:
            lanes = finished.lanes or OPEN_LOOP_LANES
            self._seen[finished.profile] = Seen(self._profiles[finished.profile], lanes, finished.records, scores)

    @property
    def material(self) -> Material | None:
        """None where no pass has ended on stock."""
        speculates = self._says_so or self._tokens > _MORE_THAN_ONE * self._chunks
        return Material(tuple(self._seen.values()), speculates, self._seed) if self._seen else None


async def drive(names: Sequence[Probe], material: Material, by: Probing) -> None:
    """Every probe on both endpoints in turn. Raises ReferenceDied, EndpointError where a server is gone."""
    for name in names:
        if name == "fixed_text":
            await _fixed_texts(material, by)
            continue
        if name in probes.SAMPLED and not material.samples:
            by.shown.say(f"no probe {name}: it samples, and every profile is greedy")
            continue
        requests = probes.load(name).requests(material)
        if not requests:
            by.shown.say(f"warning: no probe {name}: the timed passes left nothing to make it of")
            continue
        for side in by.sides:
            records = await _driven(name, side, requests, material, by)
            check_alive(side, name, records)
            await _keep(name, side, records, by)


def check_alive(side: Opened, name: Probe, records: Sequence[Record]) -> None:
    """A server that a probe ended must not pass for one that has merely brought no data. Raises EndpointError."""
    last = max(records, key=lambda record: record.end_ns or 0, default=None)
    if last is not None and last.failure is not None and last.failure.kind == "connect":
        lost = sum(record.failure is not None and record.failure.kind == "connect" for record in records)
        raise EndpointError(
            f"{side.endpoint.label} ({side.endpoint.public()['url']}) stopped answering during probe {name}: {lost} of "
            f"{len(records)} requests found no connection, the last one too ({last.failure.detail}). What was measured "
            f"is kept."
        )


async def _driven(name: Probe, side: Opened, requests: list[Request], material: Material, by: Probing) -> list[Record]:
    shape, label = material.shape.profile, side.endpoint.label
    lanes = len({request.lane for request in requests})
    by.shown.start(f"probe {name} {label}", len(requests), lanes)
    place = Place(endpoint=label, profile=shape.name, pass_no=0, phase="probe", probe=name)
    part = Part(requests=requests, place=place, limits=shape.limits, connections=lanes)
    return (await by.crew.drive(side, part, by.shown)).records


async def _keep(name: Probe, side: Opened, records: list[Record], by: Probing) -> None:
    """One law stands for all draws at a prefix, so most of them are not scored."""
    if by.reference is None:
        return
    scored = repeat_prefix.to_score(records) if name == "repeat_prefix" else records
    label = side.endpoint.label
    by.keep(label, name, await by.score(f"probe {name} {label}: scoring", scored))


async def _fixed_texts(material: Material, by: Probing) -> None:
    """What each server itself says of the texts' tokens, by one tokenizer: the reference's."""
    if by.reference is None:
        return
    texts = [ids for text in fixed_text.TEXTS if len(ids := await token_ids(by.reference, text)) > 1]
    if not texts:
        by.shown.say(f"warning: no probe fixed_text: {by.reference.endpoint.label} has no /tokenize")
        return
    profile = material.shape.profile.name
    for side in by.sides:
        records = []
        for number, ids in enumerate(texts):
            asked_ns = by.clock()
            told = await _told(side, ids, by.reference)
            records.append(fixed_text.record(side.endpoint.label, profile, number, ids, told, (asked_ns, by.clock())))
            by.write(records[-1])
        await _keep("fixed_text", side, records, by)


async def _told(side: Opened, ids: list[int], reference: Opened) -> "fixed_text.Told":
    try:
        return await prompt_scores(side, ids)
    except ReferenceDied as error:
        if side is reference:
            raise
        return str(error)


async def token_ids(server: Opened, text: str) -> list[int]:
    """By the server's own /tokenize; none at all where it has none."""
    import orjson

    target = server.target
    body = {"model": target.model, "prompt": text, "add_special_tokens": False}
    try:
        answer = await side_post(server, target.root_url("tokenize"), body)
        tokens = orjson.loads(answer.content)["tokens"] if answer.status == 200 else []
    except (Unreachable, ValueError, KeyError, TypeError):
        return []
    return tokens if isinstance(tokens, list) and all(type(one) is int and one >= 0 for one in tokens) else []
