"""What this machine's client can hold: measured, stored for the host, and warned of beyond. Machines differ, so no
figure is asserted, only what is made of figures."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen import calibrate, held
from loadgen.calibrate import Step
from loadgen.cli import calibrate as command
from loadgen.held import Held
from servers import launch


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "loadgate" / "calibration.json"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    recipe = launch.load_recipe("sim")
    with launch.start(recipe, launch.parse_settings(recipe, ["step_ms=2"])) as server:
        server.wait_healthy(60)
        yield server.url


def loadgate(*args: str | Path) -> "subprocess.CompletedProcess[str]":
    call = [sys.executable, "-m", "loadgen", *map(str, args)]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)


def step(lanes: int, **changes: Any) -> Step:
    plain = {"chunk_error_p50_ms": 0.01, "chunk_error_p99_ms": 0.1, "ttft_error_p99_ms": 0.2, "server_late_p99_ms": 1.0}
    return Step(lanes=lanes, chunks_per_s=50.0 * lanes, **{**plain, **changes})


def test_calibrating_measures_a_step_and_stores_what_was_held(cache: Path) -> None:
    """One step of the real command: every chunk compared with the server's stamps, and stored for this host."""
    said = loadgate("calibrate", "--steps", "1", "--json")
    shown = json.loads(said.stdout)
    (first,) = shown["steps"]

    assert first["lanes"] == 64
    assert first["chunks_per_s"] == pytest.approx(64 * 50, rel=0.5)
    assert said.returncode == (0 if first["holds"] else 1)
    assert cache.exists() is first["holds"]


@pytest.mark.parametrize(
    ("changes", "holds"),
    [({}, True), ({"chunk_error_p99_ms": 1.2}, False), ({"ttft_error_p99_ms": 1.2}, False)],
    ids=["both errors small", "chunks late", "first tokens late"],
)
def test_a_step_holds_where_both_errors_are_within_a_millisecond(changes: dict[str, float], holds: bool) -> None:
    """99 of 100 stamps and first tokens; the server's own lateness is not the client's."""
    assert step(64, server_late_p99_ms=90.0, **changes).holds is holds


def test_the_last_step_held_is_what_the_machine_holds() -> None:
    """The step that broke it does not count; where the first one does, nothing is held."""
    assert calibrate.most_held([step(64), step(128), step(256, ttft_error_p99_ms=5.0)]) == Held(128, 6400.0)
    assert calibrate.most_held([step(64, ttft_error_p99_ms=5.0)]) is None


def test_the_table_says_which_step_broke() -> None:
    """A line a step, with both errors and whether it was held."""
    lines = command._table([step(64), step(1000, ttft_error_p99_ms=5.0)]).splitlines()

    assert [line.split()[0] for line in lines] == ["lanes", "64", "1,000"]
    assert [line.split()[-1] for line in lines[1:]] == ["yes", "no"]


def test_each_host_of_a_shared_home_has_its_own_figures(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another host held says nothing of this one, and is kept beside it."""
    held.store(Held(64, 3200.0))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "other")
        assert held.stored() is None
        held.store(Held(1000, 50_000.0))
        assert held.stored() == Held(1000, 50_000.0)
    assert held.stored() == Held(64, 3200.0)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"HOST": {"lanes": "many"}}', '{"HOST": []}'])
def test_a_store_that_makes_no_sense_is_none(cache: Path, content: str) -> None:
    """A spoilt file warns of nothing, and is written anew."""
    cache.parent.mkdir(parents=True)
    cache.write_text(content.replace("HOST", socket.gethostname()))
    assert held.stored() is None
    held.store(Held(8, 400.0))
    assert held.stored() == Held(8, 400.0)


@pytest.mark.parametrize(
    ("lanes", "chunks_per_s", "warns"),
    [(100, 5000.0, False), (101, 10.0, True), (10, 5001.0, True), (100, None, False), (101, None, True)],
)
def test_more_lanes_or_more_chunks_than_were_held_are_warned_of(
    lanes: int, chunks_per_s: float | None, warns: bool
) -> None:
    """Either is enough; where nobody knows how fast chunks will come, lanes alone count."""
    assert (Held(100, 5000.0).beyond(lanes, chunks_per_s) is not None) is warns


@pytest.mark.parametrize(
    "load", [["--lanes", "6", "--requests", "12"], ["--request-rate", "200"]], ids=["lanes", "arrivals"]
)
def test_a_run_beyond_what_was_held_warns(engine: str, cache: Path, tmp_path: Path, load: list[str]) -> None:
    """Said on standard error once the warm-up has shown how fast chunks come; the run goes on."""
    args = ["--requests", "12", "--max-tokens", "24", *load, "--out"]
    held.store(Held(1000, 1e9))
    silent = loadgate("run", engine, *args, tmp_path / "silent")
    held.store(Held(4, 20.0))
    warned = loadgate("run", engine, *args, tmp_path / "warned")

    assert (silent.returncode, warned.returncode) == (0, 0), silent.stderr + warned.stderr
    assert ("loadgate calibrate" in silent.stderr, "loadgate calibrate" in warned.stderr) == (False, True)


def test_workers_hold_more_as_far_as_there_are_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes on eight processors hold four times as much; on two, one processor is the server's."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert Held(100, 5000.0).times(4) == Held(400, 20_000.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert Held(100, 5000.0).times(4) == Held(100, 5000.0)
