"""An event loop whose time jumps to the next timer: hours of load in seconds, the same on every run.

Nothing outside the process exists in it: no sockets, no threads, no signals.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from loadgen.reply import Clock

T = TypeVar("T")

_START_S = 1.0  # so that no stamp is 0, which a careless reader takes for missing


class Deadlock(Exception):
    """Every task waits and no timer is set: what they wait for can never happen."""


class _Jump:
    """Stands where the loop waits for the outside world: instead of waiting, it moves the time."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout_s: float | None) -> list[Any]:
        if timeout_s is None:
            raise Deadlock(
                "All tasks wait, and no timer is set that could wake one. Under the virtual clock nothing comes from "
                "outside: look for a real socket, a thread, or an event that nobody sets."
            )
        self._loop.now_s += timeout_s
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's own scheduling on a time of its own, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = _START_S
        self._selector = _Jump(self)

    def time(self) -> float:
        return self.now_s

    def clock(self) -> int:
        """The loop's time in nanoseconds."""
        return round(self.now_s * 1e9)

    # What BaseEventLoop asks of its children.

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Runs main to its end, handing it the clock. Raises Deadlock where nothing can go on."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop.clock))
