"""What the server counts and how full it is: gauges while a pass runs, counters at its borders, drained."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

from loadgen.dialects import Dialect
from loadgen.endpoint import Opened
from loadgen.record import Telemetry
from loadgen.side import side_get

Clock = Callable[[], int]

_DRAIN_POLL_S = 0.05
_DRAIN_LIMIT_S = 30.0
_GAUGES = ("running", "waiting", "kv_usage")


def read_metrics(text: str, dialect: Dialect) -> dict[str, float]:
    """Neutral name → value for every figure the page holds; what it does not hold is absent (unknown, never 0).

    Several engines behind one page: counts and counters are added, usage is the highest. What is not finite is
    no value.
    """
    seen = _samples(text, {name for metric in dialect.METRICS.values() for name in metric.families})
    values: dict[str, float] = {}
    for neutral, metric in dialect.METRICS.items():
        name = next((name for name in metric.families if name in seen), None)
        if name is not None:
            values[neutral] = max(seen[name]) if metric.combine == "max" else math.fsum(seen[name])
    return values


def _samples(text: str, wanted: set[str]) -> dict[str, list[float]]:
    """Sample name → values over its series; names match exactly, so `_created` companions stay out.

    Only their lines reach the parser: a server's whole page costs it tens of milliseconds, and a pass is running.
    """
    from prometheus_client.parser import text_string_to_metric_families

    prefixes = tuple(wanted)
    lines = [line for line in text.split("\n") if line.startswith(prefixes)]
    found: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.name in wanted and math.isfinite(sample.value):
                    found.setdefault(sample.name, []).append(sample.value)
    except ValueError:
        return {}  # a page that is no exposition format says nothing
    return found


async def capacity(opened: Opened) -> int | None:
    """Tokens that fit into the server's KV cache; None where it does not say."""
    page = await metrics_page(opened)
    return None if page is None else read_capacity(page, opened.target.dialect)


def read_capacity(text: str, dialect: Dialect) -> int | None:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        return dialect.capacity(list(text_string_to_metric_families(text)))
    except ValueError:
        return None


async def metrics_page(opened: Opened) -> str | None:
    """The server's /metrics as text; None where it has none."""
    return await side_get(opened, opened.target.root_url("metrics"))


async def counters(opened: Opened) -> dict[str, float]:
    page = await metrics_page(opened)
    return read_metrics(page, opened.target.dialect) if page is not None else {}


async def drained(opened: Opened) -> dict[str, float]:
    """The counters once nothing runs or waits any more (or 30 s have passed: then with drained = 0)."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _DRAIN_LIMIT_S
    while True:
        values = await counters(opened)
        if not values.get("running") and not values.get("waiting"):
            return values
        if loop.time() >= until_s:
            return values | {"drained": 0.0}
        await asyncio.sleep(_DRAIN_POLL_S)


async def _set_within(event: asyncio.Event, limit_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()


class Observer:
    """Writes the telemetry of one endpoint's passes."""

    def __init__(self, opened: Opened, clock: Clock, write: Callable[[Telemetry], None]) -> None:
        self._opened, self._clock, self._write = opened, clock, write

    def note(
        self, kind: Any, values: dict[str, Any], profile: str | None, pass_no: int | None, edge: Any = None
    ) -> None:
        label = self._opened.endpoint.label
        now = self._clock()
        line = Telemetry(
            kind=kind, at_ns=now, endpoint=label, profile=profile, pass_no=pass_no, edge=edge, values=values
        )
        self._write(line)

    @contextlib.asynccontextmanager
    async def watching(self, profile: str, pass_no: int, every_s: float = 1.0) -> AsyncIterator[list[dict[str, float]]]:
        """Border counters before and after, samples of the gauges in between (also yielded, growing)."""
        self.note("border", await drained(self._opened), profile, pass_no, "start")
        samples: list[dict[str, float]] = []
        over = asyncio.Event()
        sampler = asyncio.create_task(self._sample(profile, pass_no, every_s, samples, over))
        try:
            yield samples
        except BaseException:  # the pass was broken off: nobody waits for a page
            sampler.cancel()
            raise
        finally:
            # A page that is on its way is read to its end: a connection that is cut off in its pool is never closed.
            over.set()
            await asyncio.wait([sampler])
        # Not reached when the pass was interrupted: there is no second border then.
        self.note("border", await drained(self._opened), profile, pass_no, "end")

    async def _sample(
        self, profile: str, pass_no: int, every_s: float, samples: list[dict[str, float]], over: asyncio.Event
    ) -> None:
        while not await _set_within(over, every_s):
            values = await counters(self._opened)
            if not values:
                return  # no metrics page: nothing to watch
            gauges = {name: values[name] for name in _GAUGES if name in values}
            samples.append(gauges)
            self.note("sample", gauges, profile, pass_no)
