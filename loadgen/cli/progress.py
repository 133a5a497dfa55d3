"""What a person sees while load runs: one line, redrawn on a terminal, printed every few seconds elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import IO

from loadgen.record import Record

_REDRAW_S = 0.2
_PLAIN_EVERY_S = 5.0
_WIDTH = 110


class Progress:
    """Progress of passes on standard error. `now` is injected so that tests need no waiting."""

    def __init__(
        self, out: IO[str] | None = None, now: Callable[[], float] = time.monotonic, quiet: bool = False
    ) -> None:
        self._out = sys.stderr if out is None else out
        self._now, self._quiet = now, quiet
        self._tty = self._out.isatty()
        self._shown_at = -1e9
        self._drawn = False
        self.start("", 0, 0)

    def start(self, title: str, asked: int, lanes: int) -> None:
        """A new pass (or warm-up, or scoring): its title and how many requests it will send."""
        self._title, self._asked, self._lanes = title, asked, lanes
        self._done = self._failed = self._tokens = 0
        self._began = self._now()

    def ended(self, record: Record) -> None:
        self.more(1, record.failure is not None, len(record.token_ids or ()))

    def more(self, done: int, failed: int, tokens: int) -> None:
        """So many requests have ended since the last call."""
        self._done += done
        self._failed += failed
        self._tokens += tokens
        self._show()

    def counted(self, done: int, of: int) -> None:
        """For work that is no request of a pass, such as scoring."""
        self._done, self._asked = done, of
        self._show()

    def waiting(self, what: str, seconds: float) -> None:
        """For work whose length nobody knows, such as a server's start."""
        self._title, self._asked = f"{what[:80]}  {seconds:.0f} s", 0
        self._show()

    def line(self) -> str:
        spent = max(self._now() - self._began, 1e-9)
        parts = [f"{self._title}  {self._done}/{self._asked}" if self._asked else self._title]
        if self._lanes:
            parts.append(f"{min(self._lanes, self._asked - self._done)} in flight")
        if self._tokens:
            parts.append(f"{self._tokens / spent:,.0f} tok/s")
        if self._failed:
            parts.append(f"{self._failed} failed")
        if 0 < self._done < self._asked:
            parts.append(f"{spent / self._done * (self._asked - self._done):.0f} s left")
        return _printable("   ".join(parts))[:_WIDTH]

    def _show(self) -> None:
        every = _REDRAW_S if self._tty else _PLAIN_EVERY_S
        if self._quiet or self._now() - self._shown_at < every:
            return
        self._shown_at = self._now()
        self._write(f"\r\x1b[2K{self.line()}" if self._tty else f"{self.line()}\n")
        self._drawn = self._tty

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self.clear()
            self._write(f"{_printable(text)}\n")

    def clear(self) -> None:
        """Takes the redrawn line off the terminal."""
        if self._drawn:
            self._write("\r\x1b[2K")
            self._drawn = False

    def _write(self, text: str) -> None:
        """A terminal that is gone, or a pipe that nobody reads any more, must not end the run."""
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:
            self._quiet = True


def _printable(text: str) -> str:
    """A server's words among ours move no cursor."""
    return "".join(char if char.isprintable() else " " for char in text)
