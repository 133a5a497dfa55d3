"""The same pass over several processes. They share nothing while it runs: each has its lanes, its loop, its records.

Lane i belongs to worker i mod N. All start at one instant, given on the parent's clock; a worker on another host
counts from its own by the two anchors, so that on reading all due times are again those of the schedule.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from loadgen import dialects
from loadgen.backend import Backend, stamps, timed_transport
from loadgen.client import Client
from loadgen.drive import Clock, Driven, Part, ProgressDisplay, Ready, Tally, new_id
from loadgen.endpoint import Endpoint, Opened, Target, base_url, timed_client
from loadgen.record import Anchor, Record, RunWriter
from loadgen.record.writer import RecordsFile, take_anchor, worker_file

_COUNT_EVERY_S = 0.5
_BEGIN_WITHIN_S = 60.0
_STOP_WITHIN_S = 10.0


class WorkerDied(Exception):
    """A worker process ended by itself, or never began: which, how, what is kept. Exit 4."""


@dataclass(frozen=True, slots=True)
class Way:
    """What a worker needs to know of an endpoint that the parent has opened."""

    endpoint: Endpoint
    model: str
    dialect: str
    headers: dict[str, str] = field(repr=False)  # the key is among them

    @staticmethod
    def to(side: Opened) -> "Way":
        return Way(side.endpoint, side.target.model, side.target.dialect.NAME, dict(side.target.headers))

    def target(self) -> Target:
        return Target(
            label=self.endpoint.label,
            model=self.model,
            dialect=dialects.load(self.dialect),
            base=base_url(self.endpoint.url),
            headers=self.headers,
            extra_body=self.endpoint.extra_body,
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """What makes a worker."""

    index: int
    ways: tuple[Way, ...]
    backend: Backend
    run: Path  # on the parent's host
    run_digest: str  # of its run.json: a folder of that name elsewhere is another one
    parent: Anchor

    @staticmethod
    def all(count: int, sides: Sequence[Opened], backend: Backend, writer: RunWriter) -> "list[Setup]":
        run = writer.path.resolve()
        ways, digest = tuple(Way.to(side) for side in sides), _digest(run)
        return [Setup(index, ways, backend, run, digest, writer.anchor) for index in range(count)]


def _digest(run: Path) -> str:
    file = run / "run.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


@dataclass(frozen=True, slots=True)
class Begun:
    anchor: Anchor
    writes: bool  # the worker writes its records itself; else they come with what it has driven


class Worker:
    """One process's part of every pass; its methods are called by the parent, one after the other but for `counts`
    and `stop`, which are answered while a pass runs."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._sides: dict[str, tuple[Any, Target]] = {}
        self._file: RecordsFile | None = None
        self._unwritten: list[Record] = []
        self._counts = (0, 0, 0)
        self._work: asyncio.Task[Any] | None = None

    async def begin(self) -> Begun:
        setup = self._setup
        transports = [timed_transport(way.endpoint, setup.backend) for way in setup.ways]
        self._sides = {
            way.endpoint.label: (timed_client(transport), way.target())
            for way, transport in zip(setup.ways, transports, strict=True)
        }
        kind = stamps((way.endpoint, transport) for way, transport in zip(setup.ways, transports, strict=True))
        self._anchor = take_anchor(kind)
        if _digest(setup.run) == setup.run_digest:
            self._file = RecordsFile(worker_file(setup.run, setup.index), self._anchor)
        return Begun(self._anchor, self._file is not None)

    async def ready(self, part: Part) -> None:
        """Makes the bytes and opens the connections. Raises NoRoom, DialectError."""
        http, target = self._sides[part.place.endpoint]
        part = replace(part, records_wanted=part.records_wanted or self._file is None)
        client = Client(http, target, part.limits, time.monotonic_ns, new_id)
        self._ready: Ready = await self._working(Ready.make(client, part, time.monotonic_ns))

    async def go(self, start_ns: int) -> Driven:
        """Drives what is ready from that instant on, which is given on the parent's clock."""
        here_ns = start_ns - self._anchor.shift_ns(self._setup.parent)
        driven: Driven = await self._working(self._ready.go(here_ns, self._keep))
        self._unwritten.clear()
        return driven

    async def _working(self, work: Any) -> Any:
        self._work = asyncio.ensure_future(work)
        return await self._work

    def _keep(self, record: Record) -> None:
        if self._file is None:
            self._unwritten.append(record)
        else:
            self._file.write(record)
        done, failed, tokens = self._counts
        self._counts = done + 1, failed + (record.failure is not None), tokens + len(record.token_ids or ())

    async def counts(self) -> tuple[int, int, int]:
        """(ended, failed, tokens) since the last call."""
        counts, self._counts = self._counts, (0, 0, 0)
        return counts

    async def stop(self) -> list[Record]:
        """Cuts off what is in flight. Returns the records that are not on disk."""
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await asyncio.wait([self._work])
        unwritten, self._unwritten = self._unwritten, []
        return unwritten

    async def end(self) -> None:
        await self.stop()
        for http, _ in self._sides.values():
            await http.aclose()
        if self._file is not None:
            self._file.close()


class Remote(Protocol):
    """A Worker elsewhere."""

    async def call(self, method: str, *args: Any) -> Any:
        """Raises what the method raised, or WorkerDied."""

    async def close(self) -> None: ...


class Several:
    """A crew of workers. `begin` first."""

    def __init__(self, workers: Sequence[Remote], writer: RunWriter, clock: Clock, lead_s: float) -> None:
        """lead_s: from the last worker's being ready to the start; the word must have reached all by then."""
        self._workers, self._writer, self._clock, self._lead_s = workers, writer, clock, lead_s
        self._files: list[RecordsFile | None] = []

    @property
    def processes(self) -> int:
        return len(self._workers)

    async def begin(self) -> None:
        """Raises WorkerDied where one does not come up."""
        try:
            async with asyncio.timeout(_BEGIN_WITHIN_S):
                begun: list[Begun] = await self._each("begin")
        except TimeoutError:
            raise WorkerDied(
                f"Not all of {len(self._workers)} workers were there after {_BEGIN_WITHIN_S:g} s. Are there so many "
                f"free processors? Take fewer with --workers."
            ) from None
        for index, one in enumerate(begun):
            path = worker_file(self._writer.path, index)
            self._files.append(None if one.writes else RecordsFile(path, one.anchor))

    async def drive(self, side: Opened, part: Part, shown: ProgressDisplay) -> Driven:
        """Raises WorkerDied, and what a worker raised; the others are cut off then, and all that was seen is kept."""
        try:
            await self._each("ready", [_share(part, index, len(self._workers)) for index in range(len(self._workers))])
            start_ns = self._clock() + round(self._lead_s * 1e9)
            async with self._counting(shown):
                driven: list[Driven] = await self._each("go", [start_ns] * len(self._workers))
        except BaseException:  # a cancelled pass too: workers that go on would load the server of the next one
            await self._stop()
            raise
        for index, one in enumerate(driven):
            self._write(index, one.records)
        await self._count(shown)
        return Driven(
            records=[record for one in driven for record in one.records] if part.records_wanted else [],
            tally=Tally.total([one.tally for one in driven]),
            lateness=[late for one in driven for late in one.lateness],
            clock_moved_ns=max(one.clock_moved_ns for one in driven),
        )

    async def _each(self, method: str, given: Sequence[Any] | None = None) -> list[Any]:
        """The method of every worker, at once; each is given its own of `given`."""
        calls = [
            worker.call(method, *([] if given is None else [given[index]]))
            for index, worker in enumerate(self._workers)
        ]
        return list(await asyncio.gather(*calls))

    def _write(self, index: int, records: Sequence[Record]) -> None:
        if (file := self._files[index]) is not None:
            for record in records:
                file.write(record)

    @contextlib.asynccontextmanager
    async def _counting(self, shown: ProgressDisplay) -> AsyncIterator[None]:
        async def count() -> None:
            while True:
                await asyncio.sleep(_COUNT_EVERY_S)
                await self._count(shown)

        counting = asyncio.create_task(count())
        try:
            yield
        finally:
            counting.cancel()
            await asyncio.wait([counting])

    async def _count(self, shown: ProgressDisplay) -> None:
        counts = await self._each("counts")
        if any(done for done, _, _ in counts):
            shown.more(*(sum(column) for column in zip(*counts, strict=True)))

    async def _stop(self) -> None:
        """Those that still live end what they do, and hand over what they have."""

        async def stop(index: int, worker: Remote) -> None:
            with contextlib.suppress(WorkerDied):
                self._write(index, await worker.call("stop"))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_WITHIN_S):
                await asyncio.gather(*(stop(index, worker) for index, worker in enumerate(self._workers)))

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self._workers))
        for file in self._files:
            if file is not None:
                file.close()


def _share(part: Part, worker: int, workers: int) -> Part:
    requests = [request for request in part.requests if request.lane % workers == worker]
    return replace(part, requests=requests, connections=len(range(worker, part.connections, workers)))
