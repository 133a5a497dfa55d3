"""Writes a run directory: every line whole and on its way to the disk before the next request starts."""

import os
import platform
import socket
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import orjson

from loadgen.record.fields import SCHEMA, Anchor, Record, Telemetry
from loadgen.record.reader import scores_folder

if TYPE_CHECKING:
    import numpy as np

Reason = Literal["done", "interrupted", "failed"]


class RunExists(Exception):
    """The run directory is there already; a run is never overwritten."""


def take_anchor(stamps: Literal["kernel", "read", "virtual"]) -> Anchor:
    """Both clocks as close together as five tries give; error_ns bounds the distance between the two readings."""

    def reading() -> tuple[int, int, int]:
        before = time.monotonic_ns()
        realtime = time.time_ns()
        after = time.monotonic_ns()
        return after - before, (before + after) // 2, realtime

    error, monotonic, realtime = min(reading() for _ in range(5))
    return Anchor(
        host=socket.gethostname(),
        boot_id=_boot_id(),
        monotonic_ns=monotonic,
        realtime_ns=realtime,
        error_ns=error,
        stamps=stamps,
    )


def _boot_id() -> str | None:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else None


def host_facts() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "hostname": socket.gethostname(),
    }


class RecordsFile:
    """One process's records of a run: its anchor first, then each ended request as one unbuffered append."""

    def __init__(self, path: Path, anchor: Anchor) -> None:
        self._file = path.open("xb", buffering=0)
        _append(self._file, {"anchor": anchor})

    def write(self, record: Record) -> None:
        _append(self._file, record)

    def close(self) -> None:
        self._file.close()


def _append(file: IO[bytes], line: Any) -> None:
    # One write a line: after a kill, at most the line being written is torn, and the reader drops it.
    file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))


def worker_file(run: Path, worker: int) -> Path:
    return run / f"records-{worker}.jsonl"


class RunWriter:
    """An open run directory. Its anchor is the timeline's: telemetry and due times are of this host's clock.

    Raises RunExists where the directory is there already.
    """

    def __init__(self, path: Path, asked: dict[str, Any], anchor: Anchor) -> None:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunExists(
                f"{path} exists already, and a run is never overwritten. Give --out another directory, or remove it."
            ) from None
        self.path, self.anchor = path, anchor
        write_json(path / "run.json", {"schema": SCHEMA, **asked})
        self._records = RecordsFile(path / "records.jsonl", anchor)
        self._telemetry = (path / "telemetry.jsonl").open("xb", buffering=0)

    def record(self, record: Record) -> None:
        self._records.write(record)

    def telemetry(self, line: Telemetry) -> None:
        _append(self._telemetry, line)

    def scores(
        self,
        endpoint: str,
        profile: str,
        pass_no: int,
        scores: "np.ndarray[Any, np.dtype[np.void]]",
        oracle: str | None = None,
        by_text: bool = False,
    ) -> None:
        """Stores one pass's scores (dtype SCORE_DTYPE) by the reference, or by an oracle of that name, renamed into
        place so that no half file is seen."""
        write_scores(self.path, (endpoint, profile, pass_no), scores, oracle, by_text)

    def end(self, reason: Reason, counts: dict[str, Any]) -> None:
        """Marks the end of driving. Without this file a run is incomplete and never EQUIVALENT."""
        self._records.close()
        self._telemetry.close()
        write_json(self.path / "end.json", {"reason": reason, "counts": counts})


def write_scores(
    run: Path,
    key: tuple[str, str, int],
    scores: "np.ndarray[Any, np.dtype[np.void]]",
    oracle: str | None = None,
    by_text: bool = False,
) -> None:
    """key: (endpoint, profile, pass number). by_text: of tokens that the reference's tokenizer made of the replies'
    text."""
    import numpy as np

    folder, name = scores_folder(run, oracle, by_text), "-".join(str(part) for part in key)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{name}.partial"
    with partial.open("wb") as file:
        np.save(file, scores)
    partial.rename(folder / f"{name}.npy")


def write_oracle(run: Path, name: str, described: dict[str, Any]) -> None:
    """Keeps beside an oracle's scores whose they are."""
    folder = scores_folder(run, name)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "oracle.json", described)


def write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    partial.rename(path)
