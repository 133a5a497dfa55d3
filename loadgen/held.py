"""What this machine's client can hold, as `loadgate calibrate` found and stored it."""

import dataclasses
import math
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True, slots=True)
class Held:
    """The most that was held with the client's own error within its bound."""

    lanes: int
    chunks_per_s: float

    def times(self, processes: int) -> "Held":
        """As far as there are processors for them, and one is left for everything else."""
        useful = max(1, min(processes, (os.cpu_count() or 1) - 1))
        return Held(self.lanes * useful, self.chunks_per_s * useful)

    def beyond(self, lanes: float, chunks_per_s: float | None) -> str | None:
        """What to warn of where so much is expected; None where it is held. chunks_per_s None: nobody knows."""
        too_many, too_fast = lanes > self.lanes, chunks_per_s is not None and chunks_per_s > self.chunks_per_s
        if not too_many and not too_fast:
            return None
        expected = f"{math.ceil(lanes):,} lanes" + (f" with {chunks_per_s:,.0f} chunks/s" if chunks_per_s else "")
        return (
            f"about {expected} are more than this machine's client holds ({self.lanes:,} lanes, "
            f"{self.chunks_per_s:,.0f} chunks/s, as `loadgate calibrate` found): its stamps may be late. "
            f"Take fewer lanes, more --workers, or another machine."
        )


def place() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "loadgate" / "calibration.json"


def stored() -> Held | None:
    """For this host; None where nothing is stored, or nothing that this version reads."""
    try:
        found = orjson.loads(place().read_bytes())[socket.gethostname()]
        return Held(int(found["lanes"]), float(found["chunks_per_s"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store(held: Held) -> Path:
    """Beside other hosts' where a home is shared. Raises OSError."""
    path = place()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        hosts = orjson.loads(path.read_bytes())
        hosts = hosts if isinstance(hosts, dict) else {}
    except (OSError, ValueError):
        hosts = {}
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(orjson.dumps(hosts | {socket.gethostname(): dataclasses.asdict(held)}))
    partial.rename(path)
    return path
