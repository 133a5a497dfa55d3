"""The truth server in a process of its own: what it saw and sent, by its own clock."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from watched import pinned


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as the server saw it; nanoseconds of the machine's monotonic clock."""

    id: str
    received_ns: int
    chunk_ns: list[int]

    @property
    def ttft_ms(self) -> float:
        return (self.chunk_ns[0] - self.received_ns) / 1e6


@dataclass(frozen=True, slots=True)
class Truth:
    url: str

    def sent(self) -> list[Sent]:
        """Every request since the last call, in the order of arrival."""
        seen = [Sent(name, one["received_ns"], one["sent_ns"]) for name, one in self._page("/sent").items()]
        return sorted((one for one in seen if one.chunk_ns), key=lambda one: one.received_ns)

    def load(self) -> dict[str, Any]:
        """cpu_s since its start, late_p99_ms of its timers."""
        page: dict[str, Any] = self._page("/load")
        return page

    def _page(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def truth_server(first_ms: float, gap_ms: float, chunk_bytes: int, core: int) -> Iterator[Truth]:
    options = ["--first-ms", f"{first_ms:g}", "--gap-ms", f"{gap_ms:g}", "--chunk-bytes", str(chunk_bytes)]
    words = [*pinned(core), sys.executable, "-m", "loadgen.truth", "--port", "0", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield Truth(f"http://127.0.0.1:{int(server.stdout.readline())}")
        finally:
            server.terminate()
