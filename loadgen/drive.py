"""One pass: lanes or arrivals against one endpoint; every request that ended, or was cut off, becomes a record."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from loadgen.client import Client, Place, Prepared
from loadgen.record import Record
from loadgen.request import Request
from loadgen.schedule import by_lane

Clock = Callable[[], int]
Keep = Callable[[Record], None]

_LEAD_NS = 20_000_000  # between the last preparation and the pass's start
_LAG_EVERY_S = 0.02
_TIMER_GRAIN_S = 0.001  # uvloop's timers count whole milliseconds: what is below is the timer's, not the loop's


@dataclass(slots=True)
class Lateness:
    """How late the client itself was over one pass, in seconds."""

    loop_lags_s: list[float] = field(default_factory=list)

    def p99_s(self) -> float | None:
        return sorted(self.loop_lags_s)[int(0.99 * len(self.loop_lags_s))] if self.loop_lags_s else None

    def max_s(self) -> float | None:
        return max(self.loop_lags_s, default=None)


async def drive(client: Client, requests: Sequence[Request], place: Place, clock: Clock, keep: Keep) -> Lateness:
    """Sends one pass. Requests with one lane follow each other; each lane's first one, and every arrival of an open
    loop, waits for its due time, counted from one start instant. Cancelled: what is in flight is kept as such."""
    lanes = [[(request, client.prepare(request)) for request in lane] for lane in by_lane(requests).values()]
    start_ns = clock() + _LEAD_NS
    async with _undisturbed() as lateness:
        await _all_of([_lane(client, lane, place, start_ns, clock, keep) for lane in lanes])
    return lateness


async def _lane(
    client: Client,
    requests: list[tuple[Request, Prepared]],
    place: Place,
    start_ns: int,
    clock: Clock,
    keep: Keep,
) -> None:
    for request, prepared in requests:
        due_ns = None if request.due_s is None else start_ns + round(request.due_s * 1e9)
        # The loop's timers may fire a little early by our clock; a request never leaves before it is due.
        while due_ns is not None and (left_ns := due_ns - clock()) > 0:  # noqa: ASYNC110 - a clock sets no event
            await asyncio.sleep(max(left_ns, 1000) / 1e9)
        await client.perform(prepared, place, due_ns, keep)


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
