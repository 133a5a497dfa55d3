"""A run directory that nothing of ours can have left: one sentence with the file, never a wrong figure or a trace."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from loadgen.record import SCORE_DTYPE, Broken, Record, Run, RunWriter
from loadgen.record.writer import take_anchor

RECORD = Record(
    id="0" * 31 + "1",
    endpoint="stock",
    profile="solo",
    pass_no=0,
    lane=0,
    phase="timed",
    prompt_id="solo-0-0",
    asked={"max_tokens": 8},
    chunk_ns=[5, 6],
    chunk_tokens=[1, None],
    chunk_ambiguous=[False, False],
    token_ids=[3, 4],
)
SCORES = np.zeros(2, np.dtype(SCORE_DTYPE))
ENDLESS = SCORES.copy()
ENDLESS["logprobs"][1] = np.inf
COUNTER = orjson.dumps(
    {"kind": "border", "at_ns": 1, "endpoint": "stock", "profile": "solo", "pass_no": 0, "values": {"drafts": []}},
    option=orjson.OPT_APPEND_NEWLINE,
)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run with one record and one scored pass."""
    writer = RunWriter(tmp_path / "run", {"endpoints": {"stock": {}}, "profiles": {"solo": {}}}, take_anchor("read"))
    writer.record(RECORD)
    writer.scores("stock", "solo", 0, SCORES)
    writer.end("done", {})
    return tmp_path / "run"


def read(path: Path) -> Any:
    run = Run.open(path)
    return [list(run.records()), list(run.telemetry()), list(run.scores()), run.complete, run.reference_model]


def test_what_was_written_is_read(made: Path) -> None:
    """The whole of it, before anything is spoilt below."""
    records, _, ((*key, rows),), complete, reference = read(made)

    assert (records, key, len(rows), complete, reference) == ([RECORD], ["stock", "solo", 0], 2, True, None)


def _run_json(**changes: Any) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        file = path / "run.json"
        file.write_bytes(orjson.dumps(orjson.loads(file.read_bytes()) | changes))

    return spoil


def _record(**changes: Any) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        with (path / "records.jsonl").open("ab") as file:
            file.write(orjson.dumps(dataclasses.asdict(RECORD) | changes, option=orjson.OPT_APPEND_NEWLINE))

    return spoil


def _file(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(content) and None


def _scores(array: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path / "scores" / "stock-solo-0.npy", array)


def _torn(path: Path) -> None:
    file = path / "scores" / "stock-solo-0.npy"
    file.write_bytes(file.read_bytes()[:-40])


SPOILT = [
    ("endpoints that are a number", _run_json(endpoints=7), "run.json"),
    ("profiles that are a list", _run_json(profiles=["solo"]), "run.json"),
    (
        "a setting that is a list",
        _run_json(endpoints={"stock": {"settings": {"block size": []}}}),
        "run.json.*settings",
    ),
    ("a server's facts that are a number", _run_json(endpoints={"stock": {"served": 7}}), "run.json.*served"),
    ("a top_k in words", _run_json(profiles={"solo": {"sampling": {"top_k": "3"}}}), "run.json.*top_k"),
    ("roles without a candidate", _run_json(roles={"stock": "stock"}), "run.json"),
    ("a plan that is a number", _run_json(plan=7), "run.json"),
    ("an end that is a list", _file("end.json", b"[1]"), "end.json"),
    ("a torn end", _file("end.json", b'{"rea'), "end.json"),
    ("an id that is none", _record(id="zz"), "line 3: id"),
    ("token ids beyond 64 bits", _record(token_ids=[1 << 63]), "line 3: a number beyond"),
    ("chunks without counts", _record(chunk_tokens=[1]), "line 3: chunk_tokens"),
    ("chunks of unknown reads", _record(chunk_ambiguous=[]), "line 3: chunk_ambiguous"),
    ("telemetry that is no JSON", _file("telemetry.jsonl", b"{oops\n"), "telemetry.jsonl, line 1"),
    ("a counter that is a list", _file("telemetry.jsonl", COUNTER), "telemetry.jsonl, line 1: drafts is no number"),
    ("log-probabilities without end", _scores(ENDLESS), "stock-solo-0.npy holds log-probabilities that are none"),
    ("scores that are text", _file("scores/stock-solo-0.npy", b"garbage"), "stock-solo-0.npy"),
    ("an empty file of scores", _file("scores/stock-solo-0.npy", b""), "stock-solo-0.npy"),
    ("torn scores", _torn, "stock-solo-0.npy"),
    ("somebody's array", _scores(np.zeros(4)), "stock-solo-0.npy"),
    ("a table of scores", _scores(np.zeros((1, 2), np.dtype(SCORE_DTYPE))), "stock-solo-0.npy"),
    ("a single score", _scores(SCORES[0]), "stock-solo-0.npy"),
    ("pickled objects", _scores(np.array([{}])), "stock-solo-0.npy"),
    ("scores of no endpoint", _file("scores/other-solo-0.npy", b""), "other-solo-0.npy"),
    ("a reference that is a list", _file("scores/reference.json", b"[1]"), "reference.json"),
]


@pytest.mark.parametrize(("spoil", "says"), [row[1:] for row in SPOILT], ids=[row[0] for row in SPOILT])
def test_a_spoilt_file_is_named(made: Path, spoil: Callable[[Path], None], says: str) -> None:
    """Whatever is wrong with it: Broken, with the file and, of a record, the line and the field."""
    spoil(made)
    with pytest.raises(Broken, match=says):
        read(made)
