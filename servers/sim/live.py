"""Runs the discrete-event engine against a clock: real time in a server, virtual time in a test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from servers.sim.core import Engine, Step
from servers.sim.sequence import Emission, Job, Sequence

Clock = Callable[[], int]
"""Monotonic nanoseconds; the running event loop's time must advance with it."""

T = TypeVar("T")

_REACHED_NS = 1_000  # a loop's time is a float: waiting for the last nanosecond may never end


class Stream(Generic[T]):
    """One request's emissions, shaped, as they are delivered; it ends with the reply, or early where it was aborted."""

    def __init__(self, sequence: Sequence, shape: Callable[[Emission], T]) -> None:
        self.sequence = sequence
        self.shape = shape
        self._queue: asyncio.Queue[T | None] = asyncio.Queue()

    def put(self, shaped: T) -> None:
        self._queue.put_nowait(shaped)

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[T]:
        while (shaped := await self._queue.get()) is not None:
            yield shaped


class Live:
    """The engine's loop as a task, which lives while there is work. Sleeps with the event loop's timers alone.

    Steps keep an absolute schedule: each begins at the modelled end of the one before, however late that woke up.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self._clock = clock
        self._streams: dict[int, Stream[object]] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, job: Job, shape: Callable[[Emission], T]) -> Stream[T]:
        """shape makes of an emission what is to be sent; it is called before the emission is due."""
        stream = Stream(self.engine.submit(job, self._clock()), shape)
        self._streams[id(stream.sequence)] = stream  # type: ignore[assignment]
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return stream

    def abort(self, sequence: Sequence) -> None:
        """Ends a request that nobody waits for any more; nothing happens to one that has ended."""
        self.engine.abort(sequence)
        if stream := self._streams.pop(id(sequence), None):
            stream.close()

    async def _run(self) -> None:
        try:
            while (start := self.engine.next_start()) is not None:
                step = self.engine.begin(start)
                shaped = self._shape(step)
                await self._until(step.log.end_ns)
                self._deliver(step, shaped)
                # Those who wait for this step send before the next one is computed.
                await asyncio.sleep(0)
        finally:
            for stream in self._streams.values():
                stream.close()
            self._streams.clear()

    def _shape(self, step: Step) -> dict[int, object]:
        """Made while the step lasts, so that nothing is left to do at its end but to send."""
        keyed = ((id(emission.sequence), emission) for emission in step.emissions)
        return {key: self._streams[key].shape(emission) for key, emission in keyed}

    async def _until(self, at_ns: int) -> None:
        # uvloop's timers count whole milliseconds and may fire early: the rest, under half of one, goes round the loop.
        while (left := at_ns - self._clock()) > _REACHED_NS:  # noqa: ASYNC110 - it waits for a time, no event
            await asyncio.sleep(left / 1e9)

    def _deliver(self, step: Step, shaped: dict[int, object]) -> None:
        late_ns = max(0, self._clock() - step.log.end_ns)
        for emission in self.engine.finish(step, late_ns):
            key = id(emission.sequence)
            self._streams[key].put(shaped[key])
            if emission.finish_reason is not None:
                self._streams.pop(key).close()
