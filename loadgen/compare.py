"""The order of passes over one endpoint or two: warm-up, busy's lanes, then stock and candidate in turn (ABBA)."""

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

from loadgen import headroom, prompts
from loadgen.client import Place
from loadgen.drive import Crew, Driven, Part, Tally
from loadgen.endpoint import EndpointError, Opened
from loadgen.held import Held
from loadgen.profile import Profile
from loadgen.record import Phase, Record
from loadgen.request import Request
from loadgen.schedule import schedule
from loadgen.side import tokenize
from loadgen.telemetry import Observer, capacity

_WARMUP_LANES = 8
_CALIBRATE_ROUNDS = 3  # replies a lane while busy's lanes are adjusted
_CALIBRATE_SAMPLE_S = 0.2
_MOST_ADJUSTED = 1.5
_OPEN_LOOP_CONNECTIONS = 64


class ProgressDisplay(Protocol):
    """What a display of the progress offers."""

    def start(self, title: str, asked: int, lanes: int) -> None: ...

    def ended(self, record: Record) -> None: ...

    def more(self, done: int, failed: int, tokens: int) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be driven: profiles in order, so many passes each, prompts drawn from the seed."""

    profiles: tuple[Profile, ...]
    passes: int
    seed: int
    held: Held | None = None  # by this machine's client; None where nobody measured it
    scored: bool = True  # a finished pass then carries its records; else memory stays flat, however long it is


@dataclass(frozen=True, slots=True)
class Finished:
    """One pass that ended: timed, drained, on disk."""

    endpoint: str
    profile: str
    pass_no: int
    lanes: int | None
    records: list[Record]  # none where the load is not to be scored
    tally: Tally
    ends_round: bool = False  # every profile has now been driven equally often on every side


def order(sides: Sequence[Opened], pass_no: int) -> list[Opened]:
    """Stock first in even passes, candidate first in odd ones: what drifts in time falls on both alike (ABBA)."""
    return list(sides) if pass_no % 2 == 0 else list(reversed(sides))


async def passes(
    sides: Sequence[Opened], load: Load, crew: Crew, observe: Callable[[Opened], Observer], shown: ProgressDisplay
) -> AsyncGenerator[Finished, None]:
    """Drives everything; yields each timed pass as it ends, so that the caller may score it, judge, and stop.

    The first of the sides is the stock server: busy's lanes are found on it and replayed on the other.
    Raises EndpointError where an endpoint answers nothing at all, PromptsError where a file has too few lines.
    """
    driver = _Driver(sides, load, crew, observe, shown)
    for profile in load.profiles:
        await driver.prepare(profile.name)
    for pass_no in range(load.passes):
        turns = [(profile, side) for profile in load.profiles for side in order(sides, pass_no)]
        for turn, (profile, side) in enumerate(turns, 1):
            finished = await driver.timed_pass(side, profile.name, pass_no)
            yield replace(finished, ends_round=turn == len(turns))


def _wanted(profile: Profile, passes: int, lanes: int | None) -> dict[str, int]:
    """Pass key → prompts that it takes. A profile whose lanes are still to be found takes its warm-up's only."""
    wanted = {f"{profile.name}-warmup": profile.warmup.requests}
    if profile.kv_share is not None:
        if lanes is None:
            return wanted
        wanted[f"{profile.name}-calibrate"] = lanes * _CALIBRATE_ROUNDS
    return wanted | {f"{profile.name}-{pass_no}": profile.count(lanes) for pass_no in range(passes)}


class _Driver:
    def __init__(
        self,
        sides: Sequence[Opened],
        load: Load,
        crew: Crew,
        observe: Callable[[Opened], Observer],
        shown: ProgressDisplay,
    ) -> None:
        self.sides, self.load, self.passes, self.seed = sides, load, load.passes, load.seed
        self.crew, self.observe, self.shown = crew, observe, shown
        self.profiles = {profile.name: profile for profile in load.profiles}
        self.answered: set[str] = set()  # labels: from then on an endpoint's failures are evidence
        self.lanes = {
            profile.name: profile.lanes if isinstance(profile.lanes, int) else None for profile in load.profiles
        }
        self._reserve()

    def _reserve(self) -> None:
        """Sets every pass's slice of a prompt file aside, as far as it is known. Raises PromptsError."""
        found = prompts.reserve(
            [(one.prompts, _wanted(one, self.passes, self.lanes[name])) for name, one in self.profiles.items()]
        )
        for (name, profile), source in zip(list(self.profiles.items()), found, strict=True):
            self.profiles[name] = profile.model_copy(update={"prompts": source})

    async def prepare(self, name: str) -> None:
        """Warms both sides up and settles the lanes (None for an open loop)."""
        warm = [await self._warm_up(side, self.profiles[name]) for side in self.sides]
        if self.profiles[name].kv_share is not None:
            await self._find_lanes(self.sides[0], name, warm[0])
        self._warn_beyond(name, warm)

    def _warn_beyond(self, name: str, warm: Sequence[Sequence[Record]]) -> None:
        """Of more than this machine's client holds, as far as the warm-up lets it be foreseen, on either side."""
        says = [self._beyond(self.profiles[name], self.lanes[name], _reply_means(records)) for records in warm]
        if found := next(filter(None, says), None):
            self.shown.say(f"warning: {name}: {found}")

    def _beyond(self, profile: Profile, lanes: int | None, reply: tuple[float, float] | None) -> str | None:
        if self.load.held is None:
            return None
        if reply is None or reply[0] <= 0:
            return self.load.held.beyond(lanes or 0, None)
        seconds, chunks = reply
        rate = profile.arrivals.rate_per_s if profile.arrivals else (lanes or 0) / seconds
        return self.load.held.beyond(rate * seconds, rate * chunks)

    async def timed_pass(self, side: Opened, name: str, pass_no: int) -> Finished:
        profile, lanes = self.profiles[name], self.lanes[name]
        requests = self._requests(side, profile, lanes, str(pass_no), profile.count(lanes))
        driven = await self._drive(side, profile, requests, "timed", pass_no)
        return Finished(side.endpoint.label, name, pass_no, lanes, driven.records, driven.tally)

    def _requests(self, side: Opened, profile: Profile, lanes: int | None, key: str, count: int) -> list[Request]:
        seed, pass_key = self.seed, f"{profile.name}-{key}"
        made = prompts.make(profile.prompts, seed, pass_key, count, lambda text: tokenize(side, text))
        return schedule(profile, pass_key, made, lanes, seed, side.endpoint.label)

    async def _warm_up(self, side: Opened, profile: Profile) -> list[Record]:
        count = profile.warmup.requests
        if not count:
            return []
        lanes = min(count, profile.lanes if isinstance(profile.lanes, int) else _WARMUP_LANES)
        shape = profile.model_copy(update={"arrivals": None, "lanes": lanes})
        requests = self._requests(side, shape, lanes, "warmup", count)
        records = (await self._drive(side, profile, requests, "warmup", 0)).records
        if any(record.failure is None for record in records):
            self.answered.add(side.endpoint.label)
        if side.endpoint.label not in self.answered:
            failure = records[0].failure
            assert failure is not None
            raise EndpointError(
                f"{side.endpoint.label} ({side.endpoint.public()['url']}) answered none of {count} warm-up requests: "
                f"{failure.kind}: {failure.detail}"
            )
        return records

    async def _find_lanes(self, stock: Opened, name: str, warm: list[Record]) -> None:
        """busy: so many lanes that the stock server's KV cache is filled to the share asked for.

        lanes = share · capacity / (mean prompt + mean reply / 2), then corrected once by the usage seen.
        """
        profile, means, tokens = self.profiles[name], _mean_lengths(warm), await capacity(stock)
        share = profile.kv_share
        assert share is not None
        if tokens is None or means is None:
            what = "how many tokens fit into its KV cache" if tokens is None else "its token counts"
            raise EndpointError(
                f"{stock.endpoint.label} does not say {what}, so the lanes of profile {name} "
                f"(lanes = {profile.lanes}) cannot be found. Give a number with --lanes N, or leave the profile out."
            )
        self._settle(name, max(1, math.floor(share * tokens / (means[0] + means[1] / 2))))
        usage = await self._usage_at(stock, self.profiles[name], self.lanes[name])
        if usage:
            factor = min(max(share / usage, 1 / _MOST_ADJUSTED), _MOST_ADJUSTED)
            self._settle(name, max(1, round((self.lanes[name] or 1) * factor)))
        facts = {"capacity_tokens": tokens, "mean_prompt_tokens": means[0], "mean_reply_tokens": means[1]}
        self._say_lanes(stock, name, {**facts, "share": share, "usage_seen": usage})

    def _settle(self, name: str, lanes: int) -> None:
        # Before any request is made for them: a capacity that the server invents must not fill our memory.
        headroom.check_descriptors(math.ceil(lanes / self.crew.processes))
        self.lanes[name] = lanes
        self._reserve()

    def _say_lanes(self, stock: Opened, name: str, facts: dict[str, Any]) -> None:
        usage = facts["usage_seen"]
        seen = "usage could not be watched" if usage is None else f"usage was {usage:.2f} before the correction"
        share, tokens = facts["share"], facts["capacity_tokens"]
        says = f"{name}: {self.lanes[name]} lanes for {share:.0%} of {tokens:,} KV tokens ({seen})"
        values = {"lanes": self.lanes[name], **facts, "says": says}
        self.observe(stock).note("calibration", values, name, None)
        self.shown.say(says)

    async def _usage_at(self, stock: Opened, profile: Profile, lanes: int | None) -> float | None:
        """Median KV usage while all lanes were busy; None where the server does not say."""
        assert lanes is not None
        requests = self._requests(stock, profile, lanes, "calibrate", lanes * _CALIBRATE_ROUNDS)
        samples: list[dict[str, float]] = []
        await self._drive(stock, profile, requests, "calibrate", 0, samples)
        usage = [sample["kv_usage"] for sample in samples if sample.get("kv_usage")]
        full = [
            sample["kv_usage"]
            for sample in samples
            if sample.get("kv_usage") and sample.get("running", 0) >= 0.8 * lanes
        ]
        return _median(full or usage)

    async def _drive(
        self,
        side: Opened,
        profile: Profile,
        requests: list[Request],
        phase: Phase,
        pass_no: int,
        samples: list[dict[str, float]] | None = None,
    ) -> Driven:
        label = side.endpoint.label
        lanes = len({request.lane for request in requests}) if profile.arrivals is None else 0
        self.shown.start(f"{profile.name} {_titles[phase]} {pass_no + 1} {label}", len(requests), lanes)
        place = Place(endpoint=label, profile=profile.name, pass_no=pass_no, phase=phase, probe=None)
        part = Part(
            requests=requests,
            place=place,
            limits=profile.limits,
            connections=lanes or min(len(requests), _OPEN_LOOP_CONNECTIONS),
            records_wanted=self.load.scored or phase != "timed",
        )
        observer = self.observe(side)
        watch = _CALIBRATE_SAMPLE_S if phase == "calibrate" else 1.0
        watched: AbstractAsyncContextManager[list[dict[str, float]]] = nullcontext([])
        if phase != "warmup":
            watched = observer.watching(profile.name, pass_no, watch)
        async with watched as seen:
            driven = await self.crew.drive(side, part, self.shown)
        if samples is not None:
            samples.extend(seen)
        if phase == "timed":
            observer.note("client", _client_values(driven), profile.name, pass_no)
        return driven


_titles: dict[Phase, str] = {"timed": "pass", "warmup": "warm-up", "calibrate": "calibration", "probe": "probe"}


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _reply_means(records: Sequence[Record]) -> tuple[float, float] | None:
    """(seconds, chunks) of a reply; None where none came."""
    spans = [
        ((record.end_ns - record.sent_ns) / 1e9, len(record.chunk_ns))
        for record in records
        if record.failure is None and record.end_ns is not None and record.sent_ns is not None
    ]
    if not spans:
        return None
    return sum(span for span, _ in spans) / len(spans), sum(chunks for _, chunks in spans) / len(spans)


def _mean_lengths(records: Sequence[Record]) -> tuple[float, float] | None:
    """(prompt, reply) in tokens, over the replies that say both."""
    lengths = [
        (prompt, reply)
        for record in records
        if (prompt := _prompt_tokens(record)) and (reply := len(record.token_ids or ()) or _completion_tokens(record))
    ]
    if not lengths:
        return None
    return sum(p for p, _ in lengths) / len(lengths), sum(r for _, r in lengths) / len(lengths)


def _prompt_tokens(record: Record) -> int | None:
    counted = record.usage.prompt_tokens if record.usage else None
    return len(record.prompt_token_ids) if record.prompt_token_ids else counted


def _completion_tokens(record: Record) -> int | None:
    return record.usage.completion_tokens if record.usage else None


def _client_values(driven: Driven) -> dict[str, Any]:
    """How the client itself fared: of several processes the worst."""
    p99 = max((late for one in driven.lateness if (late := one.p99_s()) is not None), default=None)
    worst = max((late for one in driven.lateness if (late := one.max_s()) is not None), default=None)
    return {
        "loop_lag_p99_ms": None if p99 is None else p99 * 1e3,
        "loop_lag_max_ms": None if worst is None else worst * 1e3,
        "ambiguous_share": driven.tally.ambiguous / driven.tally.chunks if driven.tally.chunks else None,
        "clock_moved_us": driven.clock_moved_ns / 1e3,
        "processes": len(driven.lateness),
    }
