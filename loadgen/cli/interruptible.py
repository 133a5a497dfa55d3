"""An event loop for commands: Ctrl-C and SIGTERM end it alike, with what was seen written down."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

_ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Runs on uvloop where it is installed. SIGTERM and SIGHUP are interruptions like Ctrl-C: what was seen is written
    down."""
    factory = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with _handlers_kept(), asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_terminable(main))


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """A loop leaves the system's own handlers behind, and servers that we started need theirs back."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


async def _terminable(main: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main)
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            with suppress(NotImplementedError, RuntimeError, ValueError):  # no such platform, or not the main thread
                loop.add_signal_handler(number, terminate)
    try:
        return await task
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        if terminated:
            raise KeyboardInterrupt from None
        raise
