"""Reads a run directory, also one whose writer was killed in mid-line."""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from loadgen.record.fields import SCHEMA, SCORE_DTYPE, Anchor, Record, Telemetry

if TYPE_CHECKING:
    import numpy as np
    from pydantic import TypeAdapter


T = TypeVar("T")


class Broken(Exception):
    """The directory is no run, or holds a line that no version of this program can have written."""


@functools.cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory, opened for reading."""

    path: Path
    asked: dict[str, Any]  # run.json
    end: dict[str, Any] | None  # end.json; None where driving did not end by itself

    @staticmethod
    def open(path: Path) -> "Run":
        """Raises Broken where the directory holds no run of a known schema."""
        try:
            asked = orjson.loads((path / "run.json").read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise Broken(f"{path} is no run directory: its run.json cannot be read ({error}).") from error
        if not isinstance(asked, dict) or asked.get("schema") != SCHEMA:
            raise Broken(f"{path}/run.json is not of schema {SCHEMA}, the one this version reads.")
        end = path / "end.json"
        try:
            ended = orjson.loads(end.read_bytes()) if end.exists() else None
        except orjson.JSONDecodeError as error:
            raise Broken(f"{end} cannot be read ({error}).") from error
        return Run(path, asked, ended)

    @property
    def complete(self) -> bool:
        return self.end is not None and self.end.get("reason") == "done"

    def records(self) -> Iterator[Record]:
        """Every ended request, file by file. A torn last line (the writer was killed) is left out."""
        for file in sorted(self.path.glob("records*.jsonl")):
            for number, line in _lines(file):
                if number > 1:
                    yield _parsed(Record, file, number, line)

    def anchors(self) -> list[Anchor]:
        return [
            _parsed(Anchor, file, 1, orjson.dumps(orjson.loads(line)["anchor"]))
            for file in sorted(self.path.glob("records*.jsonl"))
            for number, line in _lines(file)
            if number == 1
        ]

    def telemetry(self) -> Iterator[Telemetry]:
        file = self.path / "telemetry.jsonl"
        if file.exists():
            for number, line in _lines(file):
                yield _parsed(Telemetry, file, number, line)

    def scores(self) -> Iterator[tuple[str, str, int, "np.ndarray[Any, np.dtype[np.void]]"]]:
        """(endpoint, profile, pass number, structured array of SCORE_DTYPE) for every scored pass."""
        import numpy as np

        for file in sorted((self.path / "scores").glob("[!.]*.npy")):
            match = self._score_name(file.name)
            scores = np.load(file)
            if match is None or scores.dtype != np.dtype(SCORE_DTYPE):
                raise Broken(f"{file} holds no scores of this version's layout.")
            yield *match, scores

    def _score_name(self, name: str) -> tuple[str, str, int] | None:
        """Labels and profile names may hold dashes: the run's own endpoint labels say where to cut."""
        for label in sorted(self.asked.get("endpoints", {}), key=len, reverse=True):
            rest = name.removeprefix(f"{label}-")
            if rest != name and (match := re.fullmatch(r"(.+)-(\d+)\.npy", rest)):
                return label, match[1], int(match[2])
        return None

    def files(self) -> list[Path]:
        """Everything that a verdict is made from, for its digests."""
        kept = [self.path / "run.json", self.path / "end.json", self.path / "telemetry.jsonl"]
        return [
            path
            for path in [*kept, *sorted(self.path.glob("records*.jsonl")), *sorted(self.path.glob("scores/[!.]*.npy"))]
            if path.exists()
        ]


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) for every line that ends: what a killed writer left half is no line."""
    with file.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            if line.endswith(b"\n"):
                yield number, line


def _parsed(kind: type[T], file: Path, number: int, line: bytes) -> T:
    from pydantic import ValidationError

    try:
        parsed: T = _adapter(cast(Any, kind)).validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Broken(f"{file}, line {number}: {where or 'not JSON'}: {first['msg']}.") from error
    return parsed
