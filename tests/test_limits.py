"""Limits of this machine are said before the start; how lanes start, and what the summary says of it."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gates import latency
from loadgen import headroom
from loadgen.headroom import NoRoom
from loadgen.record import Run
from loadgen.transport import SocketTransport
from playback import Script, playing
from servers import launch

SMALL = 'requests_per_lane = 2\nmax_tokens = 8\n[prompts]\nsource = "builtin"\n[warmup]\nrequests = 2\n'


@contextmanager
def files_allowed(number: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def loadgate(*args: str | Path, files: int | None = None) -> "subprocess.CompletedProcess[str]":
    call = [sys.executable, "-m", "loadgen", *map(str, args)]
    limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None
    return subprocess.run(call, capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit)


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    recipe = launch.load_recipe("sim")
    with launch.start(recipe, launch.parse_settings(recipe, ["step_ms=2"])) as server:
        server.wait_healthy(60)
        yield server.url


def test_too_few_open_files_are_said_with_the_number_to_raise_to() -> None:
    """200 connections do not go into 200 files: the sentence names the limit and the command."""
    with files_allowed(200), pytest.raises(NoRoom, match=r"this system allows 200.*ulimit -n \d+"):
        headroom.check_descriptors(200)


def test_enough_open_files_are_not_spoken_of() -> None:
    """What fits raises nothing."""
    headroom.check_descriptors(10)
    headroom.check_ports(10)


def test_more_connections_than_local_ports_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection to one address needs a port of its own; a system that names no range is not doubted."""
    (tmp_path / "range").write_text("40000\t40099\n")
    monkeypatch.setattr(headroom, "_PORT_RANGE", tmp_path / "range")
    headroom.check_ports(100)
    with pytest.raises(NoRoom, match="ip_local_port_range"):
        headroom.check_ports(101)
    monkeypatch.setattr(headroom, "_PORT_RANGE", tmp_path / "none")
    headroom.check_ports(101)


@pytest.mark.parametrize(
    ("number", "ours"),
    [(errno.EMFILE, True), (errno.EADDRNOTAVAIL, True), (errno.ECONNREFUSED, False), (errno.ETIMEDOUT, False)],
)
def test_want_of_our_own_is_told_from_the_servers_failures(number: int, ours: bool) -> None:
    """Files and ports that ran out here are no failure of the server."""
    assert (headroom.refused_here(OSError(number, os.strerror(number))) is not None) is ours


async def test_files_that_run_out_in_the_middle_stop_the_run() -> None:
    """A connection that this machine cannot open raises NoRoom; it becomes no record against the server."""
    async with playing(Script([])) as server:
        transport = SocketTransport()
        request = httpx.Request("GET", server.url)
        os.close(next_free := os.dup(0))
        with files_allowed(next_free), pytest.raises(NoRoom, match="ulimit"):
            await transport.handle_async_request(request)
        await transport.aclose()


def test_a_run_that_does_not_fit_is_refused_before_it_sends_anything(engine: str, tmp_path: Path) -> None:
    """Exit 2, what to raise, and no run directory."""
    args = ["--profile", "team", "--lanes", "400", "--requests", "400", "--out", tmp_path / "run"]
    said = loadgate("run", engine, *args, files=300)

    assert said.returncode == 2
    assert "400 connections" in said.stderr
    assert "ulimit -n" in said.stderr
    assert "Traceback" not in said.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("flags", "spread_ms"), [([], 1.0), (["--burst"], 0.0)], ids=["spread", "burst"])
def test_lanes_start_spread_out_or_in_a_burst(engine: str, tmp_path: Path, flags: list[str], spread_ms: float) -> None:
    """Neighbouring lanes are due a millisecond apart, on request all at once; first waves are summed up apart."""
    profile = tmp_path / "six.toml"
    profile.write_text(f"lanes = 6\n{SMALL}")
    said = loadgate("run", engine, "--profile", profile, *flags, "--out", tmp_path / "run")
    assert said.returncode == 0, said.stderr
    run = Run.open(tmp_path / "run")
    due = sorted(record.due_ns for record in run.records() if record.phase == "timed" and record.due_ns is not None)
    (load,) = latency.summarise(run).loads

    assert [stamp - due[0] for stamp in due] == [round(lane * spread_ms * 1e6) for lane in range(6)]
    assert load.ttft_first_ms is not None
    assert load.ttft_later_ms is not None
    assert (load.ttft_first_ms["p50"].n, load.ttft_later_ms["p50"].n) == (6, 6)
    assert "a lane's first" in said.stdout
