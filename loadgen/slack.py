"""Work that can wait: one thing a turn of the loop.

A thousand at once would keep arrivals unread until two of one reply are read together, and the time between is lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class Slack:
    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def do(self, thing: Callable[[], None]) -> None:
        """Not before the next turn; in the order given."""
        self._waiting.append(thing)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)
