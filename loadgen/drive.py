"""One pass: lanes or arrivals against one endpoint; every request that ended, or was cut off, becomes a record."""

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadgen.client import Client, Place, Prepared
from loadgen.endpoint import Opened
from loadgen.profile import Limits
from loadgen.record import Record
from loadgen.request import Request
from loadgen.schedule import by_lane

Clock = Callable[[], int]
Keep = Callable[[Record], None]

_LEAD_NS = 20_000_000  # between the last preparation and the pass's start
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


@dataclass(slots=True)
class Lateness:
    """How late the client itself was over one pass, in seconds."""

    loop_lags_s: list[float] = field(default_factory=list)

    def p99_s(self) -> float | None:
        return sorted(self.loop_lags_s)[int(0.99 * len(self.loop_lags_s))] if self.loop_lags_s else None

    def max_s(self) -> float | None:
        return max(self.loop_lags_s, default=None)


@dataclass(frozen=True, slots=True)
class Driven:
    """A part that ended."""

    records: list[Record]
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
    """A part that waits for its start: bytes made, connections open."""

    client: Client
    lanes: list[list[tuple[Request, Prepared]]]
    place: Place
    clock: Clock

    @staticmethod
    async def make(client: Client, part: Part, clock: Clock) -> "Ready":
        lanes = [[(request, client.prepare(request)) for request in lane] for lane in by_lane(part.requests).values()]
        await client.open(part.connections)
        client.sync()
        return Ready(client, lanes, part.place, clock)

    async def go(self, start_ns: int, keep: Keep) -> Driven:
        """Requests with one lane follow each other; each lane's first one, and every arrival of an open loop, waits
        for its due time, counted from the start instant."""
        records: list[Record] = []

        def kept(record: Record) -> None:
            keep(record)
            records.append(record)

        async with _undisturbed() as lateness:
            await _all_of([self._lane(lane, start_ns, kept) for lane in self.lanes])
        return Driven(records, [lateness], self.client.sync())

    async def _lane(self, requests: list[tuple[Request, Prepared]], start_ns: int, keep: Keep) -> None:
        for request, prepared in requests:
            due_ns = None if request.due_s is None else start_ns + round(request.due_s * 1e9)
            # The loop's timers may fire a little early by our clock; a request never leaves before it is due.
            while due_ns is not None and (left_ns := due_ns - self.clock()) > 0:  # noqa: ASYNC110 - a clock sets no event
                await asyncio.sleep(max(left_ns, 1000) / 1e9)
            await self.client.perform(prepared, self.place, due_ns, keep)


def new_id() -> str:
    return uuid.uuid4().hex


async def _all_of(lanes: list[Coroutine[Any, Any, None]]) -> None:
    """Runs all; where one breaks or we are cancelled, all others are cancelled and have ended before this returns."""
    tasks = [asyncio.ensure_future(lane) for lane in lanes]
    try:
        await asyncio.gather(*tasks)
    except BaseException:  # cancelled too: whatever ends this pass ends every lane of it
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


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
