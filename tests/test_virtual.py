"""Virtual time: exact, instant, and never a silent hang."""

import asyncio
import time

import pytest

from loadgen import virtual
from loadgen.reply import Clock


def test_time_jumps_to_the_next_timer() -> None:
    """An hour passes at once, to the nanosecond."""

    async def main(clock: Clock) -> list[int]:
        start = clock()
        await asyncio.sleep(3600)
        hour = clock()
        await asyncio.sleep(0.000001)
        return [start, hour - start, clock() - hour]

    began = time.monotonic()
    assert virtual.run(main) == [1_000_000_000, 3_600_000_000_000, 1_000]
    assert time.monotonic() - began < 60


def test_timers_fire_in_order_and_at_their_times() -> None:
    """A thousand sleepers wake in the order of their sleep, each exactly then."""

    async def main(clock: Clock) -> list[tuple[int, int]]:
        woken: list[tuple[int, int]] = []

        async def sleeper(ms: int) -> None:
            await asyncio.sleep(ms / 1e3)
            woken.append((ms, clock() - 1_000_000_000))

        await asyncio.gather(*(sleeper((i * 7919) % 1000) for i in range(1000)))
        return woken

    assert virtual.run(main) == [(ms, ms * 1_000_000) for ms in range(1000)]


def test_work_takes_no_time() -> None:
    """Only timers move the clock."""

    async def main(clock: Clock) -> bool:
        before = clock()
        sum(range(100_000))
        await asyncio.sleep(0)
        return clock() == before

    assert virtual.run(main)


def test_timeouts_and_cancellation_work() -> None:
    """As on any loop."""

    async def main(clock: Clock) -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return clock()

    assert virtual.run(main) == 6_000_000_000


def test_a_deadlock_is_an_error() -> None:
    """What waits for nothing that can happen is told so, instead of hanging."""

    async def main(clock: Clock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(virtual.Deadlock, match="no timer"):
        virtual.run(main)


def test_there_are_no_sockets() -> None:
    """A real connection under virtual time would be a mistake of the set-up."""

    async def main(clock: Clock) -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    with pytest.raises((NotImplementedError, virtual.Deadlock)):
        virtual.run(main)


def test_what_main_raises_is_raised() -> None:
    """And the loop is closed."""

    async def main(clock: Clock) -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        virtual.run(main)
