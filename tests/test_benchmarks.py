"""The program that measures clients: what it makes of stamps, and one small run of it. No figure is judged here."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import clients
import tables
from figures import Costs, costs, errors
from peers import Load, Reply, load_peer, names
from truths import Sent
from watched import run

MS = 1_000_000
BENCHMARK = Path(clients.__file__)


def sent(name: str, received_ms: float, *chunk_ms: float) -> Sent:
    return Sent(name, int(received_ms * MS), [int(at * MS) for at in chunk_ms])


def load(folder: Path, **changes: Any) -> Load:
    given = {"url": "http://127.0.0.1:9", "lanes": 2, "requests_per_lane": 1, "tokens": 3, "paced": True}
    return Load(**given | {"tokenizer": folder, "folder": folder} | changes)  # type: ignore[arg-type]


def test_replies_are_held_against_the_requests_of_their_ids() -> None:
    """Client minus server, whatever the order; a warm-up request that no reply belongs to counts for nothing."""
    requests = [sent("warm", 0, 500), sent("a", 10, 30, 50), sent("b", 20, 40, 70)]
    replies = [
        Reply(23.0, "b", [31.0], [43 * MS, 71 * MS], shared=0),
        Reply(21.0, "a", [19.0], [31 * MS, 52 * MS], shared=2),
    ]
    held = errors(replies, requests)
    assert held.replies == 2
    assert held.ttft_mean_ms == pytest.approx(2.0)
    assert held.chunk_p50_ms == pytest.approx(1.5)  # of 3, 1, 1, 2
    assert held.chunk_max_ms == pytest.approx(3.0)
    assert held.itl_sd_added_ms == pytest.approx(6.0 - 5.0)  # of 31, 19 against 30, 20
    assert held.shared == 0.5


def test_replies_without_ids_are_paired_in_the_order_of_sending() -> None:
    """With the last that the server saw: what came before was warm-up. What a client does not keep is None."""
    held = errors([Reply(25.0), Reply(35.0)], [sent("warm", 0, 500), sent("x", 10, 30), sent("y", 20, 50)])
    assert held.ttft_mean_ms == pytest.approx(5.0)
    assert (held.chunk_p50_ms, held.itl_sd_added_ms, held.shared) == (None, None, None)


@pytest.mark.parametrize(
    ("replies", "why"),
    [([], "no successful"), ([Reply(1.0, "z")], "never saw 1"), ([Reply(1.0), Reply(1.0)], "reports 2 requests")],
)
def test_replies_that_no_request_belongs_to(replies: list[Reply], why: str) -> None:
    """A client that reports what never happened is told so, not averaged."""
    with pytest.raises(ValueError, match=why):
        errors(replies, [sent("a", 0, 1)])


def test_the_costs_of_three_runs_solve_for_all_three() -> None:
    """Start, request and chunk come back from the runs that they make up."""

    def cpu_s(requests: int, chunks: int) -> tuple[int, int, float]:
        return requests, chunks, 0.5 + requests * 100e-6 + requests * chunks * 8e-6

    found = costs(cpu_s(100, 50), cpu_s(100, 150), cpu_s(400, 50))
    assert found == Costs(pytest.approx(0.5), pytest.approx(100.0), pytest.approx(8.0))


RESULTS: dict[str, tuple[str, Any]] = {
    "vllm": ("result.json", {"ttfts": [0.02, 0.0], "itls": [[0.01, 0.03], []], "errors": ["", "gone"]}),
    "sglang": ("result.jsonl", {"ttfts": [0.02, 0.0], "itls": [[0.01, 0.03], []], "errors": ["", "gone"]}),
    "aiperf": (
        "result/profile_export.jsonl",
        {
            "metadata": {"x_request_id": "bench-0"},
            "metrics": {"time_to_first_token": {"value": 20.0}, "inter_chunk_latency": {"value": [10.0, 30.0]}},
        },
    ),
    "guidellm": (
        "result.json",
        {"benchmarks": [{"requests": {"successful": [{"request_start_time": 1.0, "time_to_first_token_ms": 20.0}]}}]},
    ),
}


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_every_peer_s_result_file_is_read(name: str, tmp_path: Path) -> None:
    """In milliseconds; failed requests are left out; ids and gaps where the client keeps them."""
    file, content = RESULTS[name]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(json.dumps(content))
    (reply,) = load_peer(name).read(load(tmp_path))
    assert reply.ttft_ms == pytest.approx(20.0)
    assert reply.id == ("bench-0" if name in ("vllm", "aiperf") else None)
    assert reply.gaps_ms == (None if name == "guidellm" else pytest.approx([10.0, 30.0]))


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_every_peer_is_asked_for_the_same_load(name: str, tmp_path: Path) -> None:
    """Lanes, requests and reply length stand in its command, and a burst has no rate."""
    asked = load(tmp_path, lanes=77, requests_per_lane=2, tokens=55)
    words = " ".join(load_peer(name).command("python", asked).words)
    assert all(number in words for number in ("77", "154", "55", asked.url))
    (tmp_path / "burst").mkdir()
    burst = load(tmp_path / "burst", paced=False)
    assert "request-rate" not in " ".join(load_peer(name).command("python", burst).words)


def test_a_peer_that_is_not_installed_is_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The variable that would name it, or what it lacks."""
    for name in names():
        monkeypatch.delenv(load_peer(name).PYTHON, raising=False)
    monkeypatch.setenv("LOADGATE_PEER_SGLANG", sys.executable)
    found = clients.installed(["all"], tmp_path)
    assert [client.name for client in found] == ["ours"]
    said = capsys.readouterr().err
    assert "LOADGATE_PEER_VLLM" in said
    assert f"{sys.executable} has no sglang" in said


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_proc
def test_what_children_s_children_spend_is_counted(tmp_path: Path) -> None:
    """Also that of one whose parent did not wait for it: the command has ended only when all have."""
    work = "import time; until = time.process_time() + 0.3\nwhile time.process_time() < until: pass"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {work!r}])"
    spent = run([sys.executable, "-W", "ignore", "-c", parent], {}, tmp_path / "log", 30)
    assert spent.status == 0
    assert spent.cpu_s >= 0.3


@needs_proc
def test_a_client_that_hangs_is_ended(tmp_path: Path) -> None:
    """With all its processes, at the limit."""
    hanging = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired):
        run([sys.executable, "-c", hanging], {}, tmp_path / "log", 1.0)
    child = int((tmp_path / "log").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.02)
    pytest.fail("the child is still there")


@needs_proc
def test_our_client_is_measured(tmp_path: Path) -> None:
    """One command: a table with a row for each number of lanes, the goals, and every figure in a file."""
    figures = tmp_path / "figures.json"
    small = ["--lanes", "2", "4", "--requests-per-lane", "2", "--tokens", "5", "--first-ms", "2", "--gap-ms", "2"]
    words = [sys.executable, str(BENCHMARK), "--peers", "ours", *small, "--no-costs", "--tries", "1"]
    told = subprocess.run([*words, "--json", str(figures)], capture_output=True, text=True, check=True, timeout=60)
    assert "| ours | 2 |" in told.stdout
    assert "| ours | 4 |" in told.stdout
    assert "Goals at 4 lanes" in told.stdout
    two, four = json.loads(figures.read_text())
    assert (two["errors"]["replies"], four["errors"]["replies"]) == (4, 8)
    assert two["spent"]["cpu_s"] > 0
    assert two["startup_s"] > 0


def test_a_goal_is_told_only_where_it_was_measured() -> None:
    """No costs, no row for them; and a paced run says nothing of a burst."""
    row = argparse.Namespace(
        load=argparse.Namespace(lanes=1000),
        errors=argparse.Namespace(
            ttft_mean_ms=0.1, ttft_p99_ms=3.0, chunk_p50_ms=0.01, chunk_p99_ms=None, itl_sd_added_ms=0.0
        ),
        spent=argparse.Namespace(rss_mb=100.0),
        startup_s=0.2,
        costs=None,
    )
    told = tables.goals(row, "paced", None)
    assert "| TTFT error, paced start, p99 (ms) | < 2 | 3.0 | missed |" in told
    assert "| memory (MB) | < 120 | 100 | met |" in told
    assert not any(word in told for word in ("burst", "a chunk (µs)", "chunk stamp error, p99", "--help"))


def test_the_benchmark_needs_no_environment_of_ours() -> None:
    """--help works and names every option of the ruler."""
    words = [sys.executable, str(BENCHMARK), "--help"]
    told = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    assert all(option in told.stdout for option in ("--lanes", "--start", "--peers", "--tokenizer"))
