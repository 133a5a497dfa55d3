"""Reads a run directory, also one whose writer was killed in mid-line."""

import dataclasses
import functools
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from loadgen.record.fields import SCHEMA, SCORE_DTYPE, Anchor, Record, Telemetry

if TYPE_CHECKING:
    import numpy as np
    from pydantic import TypeAdapter


T = TypeVar("T")

_BEYOND = 1 << 63

_NUMBERS = ("sample", "border", "client", "memory")  # kinds of telemetry that hold nothing else

_HIGHEST = 1.0  # of a log-probability; as the scorer, which takes what adds up to 1 but for rounding


# What numpy raises for a file that is none of its own: it reads the header as a piece of Python.
_NO_ARRAY = (ValueError, EOFError, OSError, SyntaxError, tokenize.TokenError, TypeError, MemoryError)


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
        _parsed(_Asked, path / "run.json", None, orjson.dumps(asked))
        return Run(path, asked, _object(path / "end.json"))

    @property
    def complete(self) -> bool:
        return self.end is not None and self.end.get("reason") == "done"

    @property
    def reference_model(self) -> str | None:
        """The model that scored, by its name; None where the run does not say."""
        model = self._reference.get("model")
        return model if isinstance(model, str) else None

    @property
    def scored_share(self) -> float:
        """Of the timed tokens that the reference was asked about; less than 1 where each was a request of its own."""
        share = self._reference.get("share", 1.0)
        return float(share) if isinstance(share, int | float) and 0 < share <= 1 else 1.0

    @property
    def _reference(self) -> dict[str, Any]:
        found = _object(self.path / "scores" / "reference.json") or self.asked.get("reference")
        return found if isinstance(found, dict) else {}

    def records(self) -> Iterator[Record]:
        """Every ended request, file by file, all stamps on the timeline of the first file's host.

        A torn last line (the writer was killed) is left out.
        """
        timeline: Anchor | None = None
        for file in self._records_files():
            shift_ns = 0
            for number, line in _lines(file):
                if number == 1:
                    anchor = _parsed(_Head, file, 1, line).anchor
                    timeline = timeline or anchor
                    shift_ns = anchor.shift_ns(timeline)
                else:
                    record = _whole(_parsed(Record, file, number, line), file, number)
                    yield _shifted(record, shift_ns) if shift_ns else record

    def anchors(self) -> list[Anchor]:
        return [
            _parsed(_Head, file, 1, line).anchor
            for file in self._records_files()
            for number, line in _lines(file)
            if number == 1
        ]

    def _records_files(self) -> list[Path]:
        """The run's own first, then the workers' by their numbers."""
        return sorted(self.path.glob("records*.jsonl"), key=lambda path: (len(path.name), path.name))

    def telemetry(self) -> Iterator[Telemetry]:
        file = self.path / "telemetry.jsonl"
        if file.exists():
            for number, line in _lines(file):
                told = _parsed(Telemetry, file, number, line)
                for name, value in told.values.items() if told.kind in _NUMBERS else ():
                    if not isinstance(value, int | float | None):
                        raise Broken(f"{file}, line {number}: {name} is no number.")
                yield told

    def oracles(self) -> dict[str, str | None]:
        """Name → model (None where it is not said) of each likely wrong model that scored too."""
        found = {}
        for folder in sorted((self.path / "scores").glob("oracle-*/")):
            model = (_object(folder / "oracle.json") or {}).get("model")
            found[folder.name.removeprefix("oracle-")] = model if isinstance(model, str) else None
        return found

    def scores(
        self, oracle: str | None = None, by_text: bool = False
    ) -> Iterator[tuple[str, str, int, "np.ndarray[Any, np.dtype[np.void]]"]]:
        """(endpoint, profile, pass number, structured array of SCORE_DTYPE) for every pass that the reference scored,
        in scores/, or that an oracle did, in scores/oracle-NAME/ under the same names.

        by_text: the reference's of the replies' text, tokenized again, which a run has where a server returned text
        alone, in scores/text/.
        """
        import numpy as np

        for file in sorted(scores_folder(self.path, oracle, by_text).glob("[!.]*.npy")):
            match = self._score_name(file.name)
            try:
                scores = np.load(file)
            except _NO_ARRAY as error:
                raise Broken(f"{file} holds no scores that can be read ({error}). Remove it to score anew.") from error
            if match is None or not isinstance(scores, np.ndarray) or scores.dtype != SCORE_DTYPE or scores.ndim != 1:
                raise Broken(f"{file} holds no scores of this version's layout. Remove it to score anew.")
            if (scores["logprobs"] > _HIGHEST).any():
                raise Broken(f"{file} holds log-probabilities that are none. Remove it to score anew.")
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
        kept += sorted(self.path.glob("records*.jsonl")) + sorted(self.path.glob("scores/**/[!.]*.npy"))
        return [path for path in kept if path.exists()]


def scores_folder(run: Path, oracle: str | None, by_text: bool = False) -> Path:
    """The reference's scores, or an oracle's; by_text: those of re-tokenized replies."""
    if by_text:
        return run / "scores" / "text"
    return run / "scores" if oracle is None else run / "scores" / f"oracle-{oracle}"


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of a records file."""

    anchor: Anchor


@dataclass(frozen=True, slots=True)
class _Roles:
    stock: str
    candidate: str


@dataclass(frozen=True, slots=True)
class _Endpoint:
    dialect: str | None = None
    served: dict[str, Any] | None = None
    settings: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class _Profile:
    sampling: _Sampling | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What readers rely on in run.json; it holds more."""

    schema: int
    endpoints: dict[str, _Endpoint] = field(default_factory=dict)
    profiles: dict[str, _Profile] = field(default_factory=dict)
    roles: _Roles | None = None
    plan: str | None = None


def _object(file: Path) -> dict[str, Any] | None:
    """None where there is no such file. Raises Broken."""
    try:
        content = orjson.loads(file.read_bytes()) if file.exists() else None
    except (OSError, orjson.JSONDecodeError) as error:
        raise Broken(f"{file} cannot be read ({error}).") from error
    if content is not None and not isinstance(content, dict):
        raise Broken(f"{file} holds a {type(content).__name__}, not an object.")
    return content


def _whole(record: Record, file: Path, number: int) -> Record:
    """What the types alone do not say. Raises Broken."""
    numbers = [*record.chunk_ns, *(record.token_ids or ()), *(record.prompt_token_ids or ())]
    wrong = {
        "id": not re.fullmatch(r"[0-9a-f]{16,}", record.id),
        "chunk_tokens": len(record.chunk_tokens) != len(record.chunk_ns),
        "chunk_ambiguous": len(record.chunk_ambiguous) != len(record.chunk_ns),
        "a number beyond 64 bits": bool(numbers) and (min(numbers) < -_BEYOND or max(numbers) >= _BEYOND),
    }
    for what, holds in wrong.items():
        if holds:
            raise Broken(f"{file}, line {number}: {what}: no version of this program writes such a record.")
    return record


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) for every line that ends: what a killed writer left half is no line."""
    with file.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            if line.endswith(b"\n"):
                yield number, line


def _shifted(record: Record, by_ns: int) -> Record:
    def moved(stamp_ns: int | None) -> int | None:
        return None if stamp_ns is None else stamp_ns + by_ns

    return dataclasses.replace(
        record,
        due_ns=moved(record.due_ns),
        sent_ns=moved(record.sent_ns),
        first_byte_ns=moved(record.first_byte_ns),
        end_ns=moved(record.end_ns),
        chunk_ns=[stamp_ns + by_ns for stamp_ns in record.chunk_ns],
    )


def _parsed(kind: type[T], file: Path, number: int | None, line: bytes) -> T:
    from pydantic import ValidationError

    try:
        parsed: T = _adapter(cast(Any, kind)).validate_json(line, strict=kind is _Asked or None)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        line_no = "" if number is None else f", line {number}"
        raise Broken(f"{file}{line_no}: {where or 'not JSON'}: {first['msg']}.") from error
    return parsed
