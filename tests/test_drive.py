"""Driving a pass: nothing of it stays behind, little of it is held at a time."""

import asyncio
import gc
import sys
import tracemalloc
from pathlib import Path

import pytest

from conftest import SimServer
from loadgen.cli.progress import Progress
from loadgen.cli.session import Session, conduct, real_world
from loadgen.compare import Load
from loadgen.endpoint import Endpoint
from loadgen.profile import Profile
from loadgen.prompts import builtin
from loadgen.record import Run


def session(url: str, out: Path, requests: int, lanes: int = 8) -> Session:
    profile = Profile.model_validate(
        {
            "name": "short",
            "lanes": lanes,
            "requests": requests,
            "max_tokens": 8,
            "prompts": builtin.Settings(),
            "warmup": {"requests": 2},
        }
    )
    endpoint = Endpoint(url=url, label="endpoint")
    return Session(
        command="run", endpoints=(endpoint,), load=Load((profile,), 1, 0, scored=False), out=out, scored=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="counts /proc/self/fd")
async def test_a_run_leaves_no_task_socket_or_file(sim_server: SimServer, tmp_path: Path) -> None:
    """Neither in this loop nor in this process."""
    url = sim_server("sim", step_ms=1).url
    await conduct(session(url, tmp_path / "first", 16), real_world(), Progress())  # what is opened once stays open
    gc.collect()
    tasks, files = asyncio.all_tasks(), sorted(Path("/proc/self/fd").iterdir())
    await conduct(session(url, tmp_path / "run", 64), real_world(), Progress())
    await asyncio.sleep(0.05)

    assert len(list(Run.open(tmp_path / "run").records())) == 64 + 2
    assert asyncio.all_tasks() == tasks
    assert sorted(Path("/proc/self/fd").iterdir()) == files


async def test_memory_does_not_grow_with_the_requests_that_have_ended(sim_server: SimServer, tmp_path: Path) -> None:
    """A pass ten times as long peaks by no more than its longer schedule: its prompts and due times."""
    url = sim_server("sim", step_ms=1).url
    peaks = []
    for requests in (100, 1000):
        tracemalloc.start()
        await conduct(session(url, tmp_path / str(requests), requests, lanes=20), real_world(), Progress())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] - peaks[0] < 900 * 2_000
