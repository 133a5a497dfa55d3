"""Several processes deliver what one does: the same schedule, one timeline, and a loud end where one dies."""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from loadgen.cli.progress import Progress
from loadgen.client import Place
from loadgen.discovery import open_endpoint
from loadgen.drive import Part
from loadgen.endpoint import Endpoint
from loadgen.processes import several
from loadgen.profile import Limits
from loadgen.prompts import Prompt
from loadgen.record import Anchor, Record, Run, RunWriter
from loadgen.record.writer import RecordsFile, take_anchor, worker_file
from loadgen.request import Request
from loadgen.transport import SocketTransport
from loadgen.workers import Setup
from servers import launch

CLOSED = 'lanes = 6\nrequests = 20\nmax_tokens = 16\n[prompts]\nsource = "builtin"\n[warmup]\nrequests = 4\n'
OPEN = (
    'requests = 20\nmax_tokens = 16\n[arrivals]\nrate_per_s = 60\n[prompts]\nsource = "builtin"\n'
    "[warmup]\nrequests = 4\n"
)


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    recipe = launch.load_recipe("sim")
    with launch.start(recipe, launch.parse_settings(recipe, ["step_ms=2"])) as server:
        server.wait_healthy(60)
        yield server.url


@pytest.fixture(params=[CLOSED, OPEN], ids=["closed", "open"])
def profile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "load.toml"
    file.write_text(request.param)
    return file


def started(*args: str | Path) -> "subprocess.Popen[str]":
    call = [sys.executable, "-m", "loadgen", *map(str, args)]
    return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done(*args: str | Path, timeout_s: float = 60) -> tuple[int, str, str]:
    with started(*args) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return process.returncode, out, err


def timed(run: Path) -> list[Record]:
    return [record for record in Run.open(run).records() if record.phase == "timed"]


def delivered(run: Path) -> set[tuple[str, int, int | None]]:
    """(prompt_id, lane, due from the first one due)."""
    records = timed(run)
    first = min(record.due_ns for record in records if record.due_ns is not None)
    return {(r.prompt_id, r.lane, None if r.due_ns is None else r.due_ns - first) for r in records}


def test_two_workers_deliver_what_one_process_does(engine: str, profile: Path, tmp_path: Path) -> None:
    """The same seed gives the same prompts, lanes and due times; lane i is worker i mod 2's."""
    for name, flags in (("one", []), ("two", ["--workers", "2"])):
        code, _, err = done("run", engine, "--profile", profile, "--seed", "5", *flags, "--out", tmp_path / name)
        assert code == 0, err
    files = [worker_file(tmp_path / "two", index).read_text().splitlines() for index in (0, 1)]
    lanes = [{json.loads(line)["lane"] % 2 for line in lines[1:]} for lines in files]

    assert delivered(tmp_path / "two") == delivered(tmp_path / "one")
    assert lanes == [{0}, {1}]
    assert all(record.failure is None for record in timed(tmp_path / "two"))
    assert min((r.sent_ns or 0) - (r.due_ns or 0) for r in timed(tmp_path / "two") if r.due_ns is not None) >= 0


def test_every_file_has_its_own_anchor_and_the_client_notes_all_processes(engine: str, tmp_path: Path) -> None:
    """Three anchors (the parent's first), one timeline, the lateness of the worst of two."""
    (tmp_path / "load.toml").write_text(CLOSED)
    code, _, err = done("run", engine, "--profile", tmp_path / "load.toml", "--workers", "2", "--out", tmp_path / "run")
    run = Run.open(tmp_path / "run")
    (client,) = [line.values for line in run.telemetry() if line.kind == "client"]

    assert code == 0, err
    assert run.complete
    assert len(run.anchors()) == 3
    assert {anchor.shift_ns(run.anchors()[0]) for anchor in run.anchors()} == {0}
    assert client["processes"] == 2
    assert run.asked["drivers"]["workers"] == 2


def test_more_workers_than_lanes_leaves_some_idle(engine: str, tmp_path: Path) -> None:
    """A worker without a lane has an empty file and harms nothing."""
    (tmp_path / "load.toml").write_text(CLOSED.replace("lanes = 6", "lanes = 2"))
    code, _, err = done("run", engine, "--profile", tmp_path / "load.toml", "--workers", "3", "--out", tmp_path / "run")

    assert code == 0, err
    assert len(timed(tmp_path / "run")) == 20


def test_a_comparison_is_scored_from_its_workers_records(engine: str, tmp_path: Path) -> None:
    """What workers received is what the reference scores."""
    (tmp_path / "load.toml").write_text(CLOSED)
    args = ["--profile", tmp_path / "load.toml", "--passes", "1", "--workers", "2", "--out", tmp_path / "run"]
    code, _, err = done("compare", engine, engine, "--plan", "demo", *args)  # which sends no probes
    received = sum(len(record.token_ids or ()) for record in timed(tmp_path / "run"))

    assert code == 3, err
    assert sum(len(rows) for _, _, _, rows in Run.open(tmp_path / "run").scores()) == received


def _workers_of(process: "subprocess.Popen[str]") -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"loadgen.processes" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _runs(pid: int) -> bool:
    """One that has ended may stand in the table until init takes note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_for_records(file: Path, lines: int) -> None:
    for _ in range(400):
        if file.exists() and file.read_bytes().count(b"\n") > lines:
            return
        time.sleep(0.05)
    raise AssertionError(f"{file} never held {lines} records")


@pytest.fixture
def long_load(tmp_path: Path) -> Path:
    file = tmp_path / "long.toml"
    file.write_text(CLOSED.replace("requests = 20", "requests = 4000"))
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_worker_that_dies_ends_the_run_loudly_with_what_was_kept(
    engine: str, long_load: Path, tmp_path: Path
) -> None:
    """kill −9 of a worker: exit 4, one sentence that names it, every file readable, the other one's replies kept."""
    out = tmp_path / "run"
    with started("run", engine, "--profile", long_load, "--workers", "2", "--out", out) as process:
        _wait_for_records(worker_file(out, 1), 10)
        workers = _workers_of(process)
        os.kill(workers[1], signal.SIGKILL)
        _, err = process.communicate(timeout=30)
    run = Run.open(out)

    assert (process.returncode, "Traceback" in err) == (4, False), err
    assert "Worker 1" in err
    assert "SIGKILL" in err
    assert "records-1.jsonl" in err
    assert run.end is not None
    assert run.end["reason"] == "failed"
    assert len([record for record in run.records() if record.lane % 2 == 1]) >= 10
    assert any(record.failure and record.failure.kind == "cancelled" for record in run.records())
    assert not any(_runs(pid) for pid in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(engine: str, long_load: Path, tmp_path: Path, number: int) -> None:
    """Interrupted, terminated or killed: no worker is left, and what was in flight is on disk as cut off."""
    out = tmp_path / "run"
    with started("run", engine, "--profile", long_load, "--workers", "2", "--out", out) as process:
        _wait_for_records(worker_file(out, 1), 10)
        workers = _workers_of(process)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    for _ in range(200):
        if not any(_runs(pid) for pid in workers):
            break
        time.sleep(0.05)
    cut = {record.lane for record in timed(out) if record.failure and record.failure.kind == "cancelled"}

    assert len(workers) == 2
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert "Traceback" not in err
    assert not any(_runs(pid) for pid in workers)
    assert cut == set(range(6))


ONE = Anchor(host="a", boot_id="1", monotonic_ns=1_000, realtime_ns=5_000_000, error_ns=0, stamps="kernel")


@pytest.mark.parametrize(
    ("other", "shift_ns"),
    [
        (dataclasses.replace(ONE, host="container", monotonic_ns=9_000, realtime_ns=5_008_500), 0),
        (dataclasses.replace(ONE, host="b", boot_id="2", monotonic_ns=400_000, realtime_ns=5_000_000), -399_000),
        (dataclasses.replace(ONE, host="b", boot_id=None, monotonic_ns=0, realtime_ns=5_000_000), 1_000),
    ],
    ids=["one boot is one clock", "another boot", "a system without boot ids"],
)
def test_stamps_of_other_hosts_are_read_on_one_timeline(tmp_path: Path, other: Anchor, shift_ns: int) -> None:
    """A reader adds the distance of the two hosts' clocks to every stamp, to durations never."""
    record = Record(
        id="0" * 32,
        endpoint="e",
        profile="p",
        pass_no=0,
        lane=0,
        phase="timed",
        prompt_id="p-0-0",
        asked={},
        due_ns=10_000_000,
        connect_ns=7,
        sent_ns=11_000_000,
        end_ns=14_000_000,
        chunk_ns=[12_000_000, 13_000_000],
        chunk_tokens=[1, 1],
        chunk_ambiguous=[False, False],
    )
    writer = RunWriter(tmp_path / "run", {"endpoints": {}}, ONE)
    file = RecordsFile(worker_file(tmp_path / "run", 0), other)
    file.write(record)
    file.close()
    writer.end("done", {})
    (read,) = Run.open(tmp_path / "run").records()

    assert read == dataclasses.replace(
        record,
        due_ns=10_000_000 + shift_ns,
        sent_ns=11_000_000 + shift_ns,
        end_ns=14_000_000 + shift_ns,
        chunk_ns=[12_000_000 + shift_ns, 13_000_000 + shift_ns],
    )


async def test_workers_elsewhere_send_their_records_and_count_from_their_own_clocks(
    engine: str, tmp_path: Path
) -> None:
    """On other hosts, one of them without the run's folder: what it sends is written here, and on reading all stamps
    are of the parent's clock."""
    behind_ns = 10**12

    def clock() -> int:
        return time.monotonic_ns() - behind_ns

    real = take_anchor("kernel")
    parent = dataclasses.replace(real, boot_id="another", monotonic_ns=real.monotonic_ns - behind_ns)
    requests = [
        Request(f"p-0-{i}", Prompt(text="Say."), "completions", {"max_tokens": 4}, i, i / 100) for i in range(8)
    ]
    part = Part(requests, Place(endpoint="endpoint", profile="p", pass_no=0, phase="timed"), Limits(), 8)
    writer = RunWriter(tmp_path / "run", {"endpoints": {}}, parent)
    async with AsyncExitStack() as stack:
        side = await open_endpoint(Endpoint(url=engine), SocketTransport())
        stack.push_async_callback(side.close)
        near, far = Setup.all(2, [side], "socket", writer)
        setups = [near, dataclasses.replace(far, run_digest="of another run")]
        crew = await stack.enter_async_context(several(setups, writer, clock))
        before_ns = clock()
        driven = await crew.drive(side, part, Progress(quiet=True))
    writer.end("done", {})
    read = sorted(Run.open(tmp_path / "run").records(), key=lambda record: record.lane)
    dues = [record.due_ns or 0 for record in read]

    assert len(driven.records) == 8
    assert [record.failure for record in read] == [None] * 8
    assert [due - dues[0] for due in dues] == [i * 10_000_000 for i in range(8)]
    assert before_ns < dues[0] <= (read[0].sent_ns or 0) < clock()


# Ray.

_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes on this machine."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    call = [sys.executable, "-c", _CLUSTER]
    with subprocess.Popen(
        call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate(timeout=60)


@pytest.mark.ray
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize(
    ("address", "says"), [("127.0.0.1:1", "No Ray cluster answers at 127.0.0.1:1"), ("nonsense", "is no address")]
)
def test_a_cluster_that_is_not_there_is_said_before_anything_is_written(
    engine: str, profile: Path, tmp_path: Path, address: str, says: str
) -> None:
    """Exit 2, one sentence, no run directory."""
    code, _, err = done("run", engine, "--profile", profile, "--ray", address, "--out", tmp_path / "run")

    assert (code, says in err, "Traceback" in err) == (2, True, False)
    assert not (tmp_path / "run").exists()


@pytest.mark.ray
def test_two_ray_nodes_deliver_what_one_process_does(cluster: str, engine: str, profile: Path, tmp_path: Path) -> None:
    """A worker a node: the same prompts, lanes and due times as in one process, on one timeline."""
    for name, flags in (("one", []), ("ray", ["--ray", cluster])):
        args = ["--profile", profile, "--seed", "5", *flags, "--out", tmp_path / name]
        code, _, err = done("run", engine, *args, timeout_s=120)
        assert code == 0, err

    assert delivered(tmp_path / "ray") == delivered(tmp_path / "one")
    assert len(Run.open(tmp_path / "ray").anchors()) == 3


def test_without_ray_its_option_says_what_to_install(engine: str, tmp_path: Path) -> None:
    """Exit 2 and one sentence, whether Ray or the cluster is missing."""
    code, _, err = done("run", engine, "--ray", "127.0.0.1:9", "--out", tmp_path / "run", timeout_s=120)

    assert code == 2, err
    assert "Ray" in err
    assert "Traceback" not in err
