"""One pass: lanes or arrivals against one endpoint; every request that ended, or was cut off, becomes a record."""

import asyncio
import gc
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from loadgen.client import Client, Place, Prepared
from loadgen.dialects import DialectError
from loadgen.endpoint import Opened
from loadgen.profile import Limits
from loadgen.record import Record
from loadgen.request import Request
from loadgen.schedule import by_lane
from loadgen.slack import Slack

Clock = Callable[[], int]
Keep = Callable[[Record], None]

_LEAD_NS = 20_000_000  # between the last preparation and the pass's start
_AHEAD_S = 1.0  # a lane's first request is made ready so long before it is due
_LAG_EVERY_S = 0.02
_TIMER_GRAIN_S = 0.001  # uvloop's timers count whole milliseconds: what is below is the timer's, not the loop's


class ProgressDisplay(Protocol):
    """What a display of a pass offers while it runs."""

    def ended(self, record: Record) -> None: ...

    def more(self, done: int, failed: int, tokens: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Part:
    """What one process sends of a pass; a whole pass is one too."""

    requests: Sequence[Request]
    place: Place
    limits: Limits
    connections: int  # to have open before it starts
    records_wanted: bool = True  # or else they are let go once they are on disk


@dataclass(slots=True)
class Lateness:
    """How late the client itself was over one pass, in seconds."""

    loop_lags_s: list[float] = field(default_factory=list)

    def p99_s(self) -> float | None:
        return sorted(self.loop_lags_s)[int(0.99 * len(self.loop_lags_s))] if self.loop_lags_s else None

    def max_s(self) -> float | None:
        return max(self.loop_lags_s, default=None)


@dataclass(slots=True)
class Tally:
    """What came of a part's requests, in numbers."""

    requests: int = 0
    failed: int = 0
    chunks: int = 0
    ambiguous: int = 0  # chunks

    def add(self, record: Record) -> None:
        self.requests += 1
        self.failed += record.failure is not None
        self.chunks += len(record.chunk_ambiguous)
        self.ambiguous += sum(record.chunk_ambiguous)

    @staticmethod
    def total(parts: "Sequence[Tally]") -> "Tally":
        return Tally(
            requests=sum(part.requests for part in parts),
            failed=sum(part.failed for part in parts),
            chunks=sum(part.chunks for part in parts),
            ambiguous=sum(part.ambiguous for part in parts),
        )


@dataclass(frozen=True, slots=True)
class Driven:
    """A part that ended."""

    records: list[Record]  # none where the part did not want them
    tally: Tally
    lateness: list[Lateness]  # one a process
    clock_moved_ns: int  # the kernel's clock against ours, the most over the processes


class Crew(Protocol):
    """Who sends a pass: this process alone, or several."""

    @property
    def processes(self) -> int: ...

    async def drive(self, side: Opened, part: Part, shown: ProgressDisplay) -> Driven:
        """Returns when every request has ended and is on disk. Cancelled: what was in flight is kept as such."""


class Alone:
    """This process sends it all."""

    processes = 1

    def __init__(self, clock: Clock, write: Keep) -> None:
        self._clock, self._write = clock, write

    async def drive(self, side: Opened, part: Part, shown: ProgressDisplay) -> Driven:
        client = Client(side.timed, side.target, part.limits, self._clock, new_id)
        ready = await Ready.make(client, part, self._clock)

        def keep(record: Record) -> None:
            self._write(record)
            shown.ended(record)

        return await ready.go(self._clock() + _LEAD_NS, keep)


@dataclass(frozen=True, slots=True)
class Ready:
    """A part that waits for its start: the first requests' bytes made, connections open."""

    client: Client
    lanes: "list[_Lane]"
    part: Part
    clock: Clock

    @staticmethod
    async def make(client: Client, part: Part, clock: Clock) -> "Ready":
        slack = Slack()
        lanes = [_Lane(client, requests, slack) for requests in by_lane(part.requests).values()]
        for lane in lanes:
            if lane.due_s < _AHEAD_S:
                lane.make_ready()
        await client.open(part.connections)
        client.sync()
        return Ready(client, lanes, part, clock)

    async def go(self, start_ns: int, keep: Keep) -> Driven:
        """Requests with one lane follow each other; each lane's first one, and every arrival of an open loop, waits
        for its due time, counted from the start instant."""
        records: list[Record] = []
        tally = Tally()

        def kept(record: Record) -> None:
            keep(record)
            tally.add(record)
            if self.part.records_wanted:
                records.append(record)

        async with _undisturbed() as lateness:
            await self._all_lanes(start_ns, kept)
        return Driven(records, tally, [lateness], self.client.sync())

    async def _all_lanes(self, start_ns: int, keep: Keep) -> None:
        """Each lane's task begins shortly before it is due: an open loop of any length has few of them at a time.
        Where one breaks or we are cancelled, all others are cancelled and have ended before this returns."""
        try:
            async with asyncio.TaskGroup() as group:
                for lane in self.lanes:
                    await self._until(start_ns + round((lane.due_s - _AHEAD_S) * 1e9))
                    lane.make_ready()
                    group.create_task(self._drive(lane, start_ns, keep))
        except BaseExceptionGroup as broken:
            raise broken.exceptions[0] from None

    async def _drive(self, lane: "_Lane", start_ns: int, keep: Keep) -> None:
        while (prepared := lane.take()) is not None:
            due_s = prepared.request.due_s
            due_ns = None if due_s is None else start_ns + round(due_s * 1e9)
            if due_ns is not None:
                await self._until(due_ns)
            lane.make_ready_soon()
            await self.client.perform(prepared, self.part.place, due_ns, keep)

    async def _until(self, at_ns: int) -> None:
        # The loop's timers may fire a little early by our clock; a request never leaves before it is due.
        while (left_ns := at_ns - self.clock()) > 0:  # noqa: ASYNC110 - a clock sets no event
            await asyncio.sleep(max(left_ns, 1000) / 1e9)


class _Lane:
    """One lane's requests. The bytes of each are made while the one before is in flight: a pass of any length holds
    few of them, and none is made between an answer's end and the next request."""

    def __init__(self, client: Client, requests: Sequence[Request], slack: Slack) -> None:
        self._client, self._slack = client, slack
        self._left = deque(requests)
        self._next: Prepared | None = None
        self.due_s = requests[0].due_s or 0.0

    def make_ready(self) -> None:
        """Raises DialectError."""
        if self._next is None and self._left:
            self._next = self._client.prepare(self._left[0])
            self._left.popleft()

    def make_ready_soon(self) -> None:
        """When the request that is about to leave has left."""
        if self._left:
            self._slack.do(self._make_ready_or_wait)

    def _make_ready_or_wait(self) -> None:
        with suppress(DialectError):  # the lane itself will meet it, and end the pass
            self.make_ready()

    def take(self) -> Prepared | None:
        """None after the last. Raises DialectError."""
        self.make_ready()
        prepared, self._next = self._next, None
        return prepared


def new_id() -> str:
    return uuid.uuid4().hex


@asynccontextmanager
async def _undisturbed() -> AsyncIterator[Lateness]:
    """No garbage collection in here (its pauses would be measured as the server's); the loop's lag is watched."""
    gc.collect()
    gc.freeze()
    gc.disable()
    lateness = Lateness()
    watch = asyncio.create_task(_watch_lag(lateness))
    try:
        yield lateness
    finally:
        watch.cancel()
        await asyncio.wait([watch])
        gc.enable()
        gc.unfreeze()


async def _watch_lag(lateness: Lateness) -> None:
    loop = asyncio.get_running_loop()
    while True:
        before = loop.time()
        await asyncio.sleep(_LAG_EVERY_S)
        lateness.loop_lags_s.append(max(0.0, loop.time() - before - _LAG_EVERY_S - _TIMER_GRAIN_S))
