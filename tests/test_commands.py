"""The commands over real sockets, against embedded engines in processes of their own: results and exit codes."""

import importlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from loadgen import cli
from loadgen.record import SCORE_DTYPE, Run
from servers import launch

QUICK = ["--requests", "8", "--max-tokens", "48"]
BRIEF = ["--without", "repeat_prefix"]  # whose thousands of draws take longer than all the rest


FAST = ["step_ms=2", "prefill_token_ms=0.002", "sequence_ms=0.02", "draft_ms=0.2"]


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def stock() -> Iterator[str]:
    with launch.start(launch.load_recipe("sim"), launch.parse_settings(launch.load_recipe("sim"), FAST)) as it:
        it.wait_healthy(60)
        yield it.url


@pytest.fixture(scope="module")
def speculative() -> Iterator[str]:
    recipe = launch.load_recipe("sim-spec")
    with launch.start(recipe, launch.parse_settings(recipe, FAST)) as it:
        it.wait_healthy(60)
        yield it.url


@pytest.fixture
def loadgate(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str | Path) -> Said:
        code = cli._run([str(arg) for arg in args])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def compared(stock: str, speculative: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison of two endpoints, made once."""
    out = tmp_path_factory.mktemp("commands") / "compared"
    code = cli._run(["compare", stock, speculative, "--profile", "team", "--passes", "2", *QUICK, "--out", str(out)])

    assert code == 3  # too few tokens to decide
    return out


def test_run_writes_a_run_and_sums_it_up(loadgate: Any, stock: str, tmp_path: Path) -> None:
    """`run` exits 0, shows the latencies, and leaves a complete run with a record for every request."""
    said = loadgate("run", stock, "--profile", "team", *QUICK, "--out", tmp_path / "run")
    run = Run.open(tmp_path / "run")

    assert said.code == 0
    assert "TTFT" in said.out
    assert run.complete
    assert sum(record.phase == "timed" and record.failure is None for record in run.records()) == 8


def test_run_as_json_is_json_alone(loadgate: Any, stock: str, tmp_path: Path) -> None:
    """With --json, standard output holds one JSON document."""
    said = loadgate("run", stock, "--profile", "team", *QUICK, "--out", tmp_path / "run", "--json")

    assert json.loads(said.out)


def test_open_loop_is_driven_by_the_schedule(loadgate: Any, stock: str, tmp_path: Path) -> None:
    """Arrivals are sent at their due times, each noted."""
    said = loadgate("run", stock, "--profile", "steady", "--request-rate", "40", *QUICK, "--out", tmp_path / "run")
    timed = [record for record in Run.open(tmp_path / "run").records() if record.phase == "timed"]

    assert said.code == 0
    assert all(record.due_ns is not None and record.sent_ns is not None for record in timed)
    assert min((record.sent_ns or 0) - (record.due_ns or 0) for record in timed) >= 0


def test_chat_is_driven_and_scored(loadgate: Any, stock: str, tmp_path: Path) -> None:
    """A chat profile's replies have token ids, and the reference scores them as completions."""
    profile = tmp_path / "talk.toml"
    profile.write_text(
        'lanes = 4\nrequests = 8\nendpoint = "chat"\nmax_tokens = 48\n[prompts]\nsource = "builtin"\n'
        "[warmup]\nrequests = 2\n"
    )
    said = loadgate("compare", stock, stock, "--profile", profile, "--passes", "1", *BRIEF, "--out", tmp_path / "run")
    scored = {label: len(rows) for label, _, _, rows in Run.open(tmp_path / "run").scores()}

    assert said.code == 3
    assert min(scored["stock"], scored["candidate"]) > 0


def test_compare_keeps_verdict_and_scores(compared: Path) -> None:
    """`compare` leaves verdict.json beside the scores, one file a pass and endpoint, in the fixed layout."""
    verdict = json.loads((compared / "verdict.json").read_bytes())
    files = sorted(path.name for path in (compared / "scores").iterdir())

    assert verdict["outcome"] == "undecided"
    assert verdict["needs"]["tokens"] > 0
    probes = ("fixed_text", "greedy", "logprobs", "repeat_audit", "repeat_prefix")
    of_one = [*(f"{probe}-0" for probe in probes), "team-0", "team-1"]
    assert files == [f"{label}-{name}.npy" for label in ("candidate", "stock") for name in of_one]
    assert np.load(compared / "scores" / files[0]).dtype == np.dtype(SCORE_DTYPE)


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_report_shows_a_run_again(loadgate: Any, compared: Path, form: str) -> None:
    """`report` shows the verdict in every format and writes nothing."""
    before = sorted(compared.rglob("*"))
    said = loadgate("report", compared, "--format", form)

    assert said.code == 0
    assert "undecided" in said.out.lower()
    assert sorted(compared.rglob("*")) == before


def test_judge_by_another_plan(loadgate: Any, compared: Path) -> None:
    """A run can be judged by the contest's rules without any server."""
    said = loadgate("judge", compared, "--plan", "contest", "--json")

    assert json.loads(said.out)["verdict"]["plan"] == "contest"
    assert said.code in (0, 1, 3)


def test_judging_again_changes_nothing(loadgate: Any, compared: Path) -> None:
    """Deleting the verdict loses nothing: judging the files makes the same one."""
    loadgate("judge", compared)
    before = (compared / "verdict.json").read_bytes()
    (compared / "verdict.json").unlink()
    loadgate("judge", compared)

    assert (compared / "verdict.json").read_bytes() == before


def test_two_runs_are_scored_and_judged(loadgate: Any, stock: str, speculative: str, tmp_path: Path) -> None:
    """Two runs of one endpoint each, scored by one reference, give a verdict and its report."""
    for name, url in (("a", stock), ("b", speculative)):
        assert loadgate("run", url, "--profile", "team", *QUICK, "--out", tmp_path / name).code == 0
        assert loadgate("score", tmp_path / name, "--reference", stock).code == 0
    judged = loadgate("judge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "verdict")
    again = loadgate("report", tmp_path / "verdict")

    assert judged.code == 3
    assert "likelihood" in judged.out
    assert again.out == judged.out


def test_scoring_again_leaves_scores_alone(loadgate: Any, stock: str, compared: Path) -> None:
    """`score` does only what is left to do."""
    said = loadgate("score", compared, "--reference", stock, "--json")

    assert json.loads(said.out) == {"scored": {}}


def test_a_submission_is_named_on_the_contest_page(loadgate: Any, compared: Path, tmp_path: Path) -> None:
    """--submission names title, model and track on the page of plan contest."""
    file = tmp_path / "submission.toml"
    file.write_text('title = "Seven drafted"\nmodel = "sim"\ntrack = "scored"\nspeculator = "none"\nengine = "none"\n')
    said = loadgate("judge", compared, "--plan", "contest", "--submission", file)

    assert "Seven drafted" in said.out


@pytest.mark.parametrize("kind", ["profiles", "plans", "recipes", "dialects", "checks"])
def test_list_names_what_there_is(loadgate: Any, kind: str) -> None:
    """`list` names every kind, each entry with a line about it."""
    entries = json.loads(loadgate("list", kind, "--json").out)

    assert len(entries) >= 2
    assert all(entry["about"] for entry in entries)


WRONG = [
    (["run", "URL", "--profile", "teem"], 2, "team", "an unknown profile names the nearest"),
    (["compare", "URL", "URL", "--plan", "strickt"], 2, "strict", "an unknown plan names the nearest"),
    (["compare", "URL", "URL", "--without", "likelyhood"], 2, "likelihood", "an unknown check names the nearest"),
    (["serve", "simm"], 2, "sim", "an unknown recipe names the nearest"),
    (["comprae"], 2, "compare", "an unknown command names the nearest"),
    (["run", "URL", "--dialect", "vlm"], 2, "vllm", "an unknown dialect names the nearest"),
    (["run", "localhost:8000"], 2, "http", "an address without a scheme"),
    (["run", "URL", "--extra-body", "{top_k: 1}"], 2, "JSON", "a body that is no JSON"),
    (["run", "URL", "--api-key-env", "NO_SUCH_KEY_HERE"], 2, "NO_SUCH_KEY_HERE", "a key's variable that is not set"),
    (["run", "URL", "--out", "EXISTING"], 2, "exists", "a run is never overwritten"),
    (["run", "URL", "--requests", "0"], 2, "--requests", "a number out of range names its flag"),
    (["run", "URL", "--model", "gone"], 4, "It serves: sim", "a model that is not served"),
    (["run", "http://127.0.0.1:9"], 4, "gave no answer", "nobody listens"),
    (["judge", "EMPTY"], 2, "no run directory", "a directory without a run"),
    (["judge", "EMPTY", "EMPTY"], 2, "--out", "two runs without a place for their verdict"),
]


@pytest.mark.parametrize(("args", "code", "says"), [row[:3] for row in WRONG], ids=[row[3] for row in WRONG])
def test_a_mistake_gets_one_clear_sentence(
    loadgate: Any, stock: str, tmp_path: Path, args: list[str], code: int, says: str
) -> None:
    """Wrong input: the exit code of the table, what is wrong on standard error, no trace of Python."""
    places = {"URL": stock, "EXISTING": str(tmp_path), "EMPTY": str(tmp_path)}
    said = loadgate(*[places.get(arg, arg) for arg in args])

    assert (said.code, says in said.err, "Traceback" in said.err) == (code, True, False), said.err


def test_a_profile_with_an_unknown_key_names_file_and_key(loadgate: Any, stock: str, tmp_path: Path) -> None:
    """A profile's mistake: the file, the key, what is allowed; exit 2."""
    profile = tmp_path / "mine.toml"
    profile.write_text('lanes = 4\nrequests = -8\nmax_tokns = 48\n[prompts]\nsource = "builtin"\n')
    said = loadgate("run", stock, "--profile", profile)

    assert said.code == 2
    assert {word: word in said.err for word in ("mine.toml", "max_tokns", "max_tokens", "requests")} == {
        "mine.toml": True,
        "max_tokns": True,
        "max_tokens": True,
        "requests": True,
    }


def test_what_speaks_no_http_is_said_to(loadgate: Any) -> None:
    """A port where something else listens: exit 4, what was asked, what to do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.recv(1000)
                connection.sendall(b"220 mail.example ready\r\n")
                connection.close()

        thread = threading.Thread(target=babble, daemon=True)
        thread.start()
        said = loadgate("run", f"http://127.0.0.1:{listener.getsockname()[1]}")

    assert said.code == 4
    assert "does not speak HTTP" in said.err


def test_a_wrong_key_is_said_and_never_written(loadgate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A refused key is exit 4 before anything is driven; a right one is in no file and no output."""
    port, log = launch.free_port(), tmp_path / "log"
    argv = [sys.executable, "-m", "servers.sim", "--port", str(port), "--step-ms", "2", "--api-key", "s3cret-value"]
    monkeypatch.setenv("RIGHT", "s3cret-value")
    monkeypatch.setenv("WRONG", "wr0ng-value")
    with log.open("w") as sink, subprocess.Popen(argv, stdout=sink, stderr=sink) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _listening(port)
            wrong = loadgate("run", url, "--api-key-env", "WRONG", "--out", tmp_path / "wrong")
            right = loadgate("run", url, "--api-key-env", "RIGHT", *QUICK, "--out", tmp_path / "right")
        finally:
            process.terminate()
    written = b"".join(path.read_bytes() for path in (tmp_path / "right").rglob("*") if path.is_file())

    assert (wrong.code, "refuses the key" in wrong.err, (tmp_path / "wrong").exists()) == (4, True, False)
    assert right.code == 0
    assert b"s3cret-value" not in written
    assert "s3cret-value" not in right.out + right.err
    assert "wr0ng-value" not in wrong.out + wrong.err


def _listening(port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port}")


def test_one_key_for_two_hosts_is_refused(loadgate: Any, stock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key named once must not travel to a second host."""
    monkeypatch.setenv("KEY", "value")
    said = loadgate("compare", stock, "http://127.0.0.1:9", "--api-key-env", "KEY")

    assert said.code == 2
    assert "--stock-api-key-env" in said.err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--candidate-dialect", "openai"], "token ids"),
        (["--stock-dialect", "openai"], "cannot score"),
    ],
    ids=["a candidate without token ids", "a reference without prompt log-probabilities"],
)
def test_what_cannot_be_judged_is_undecided_with_the_reason(
    loadgate: Any, stock: str, tmp_path: Path, flags: list[str], reason: str
) -> None:
    """Speeds are measured all the same; the verdict is UNDECIDED (3) and says what is missing."""
    args = ["--profile", "team", "--passes", "1", *QUICK, *BRIEF, "--out", tmp_path / "run"]
    said = loadgate("compare", stock, stock, *flags, *args)

    assert said.code == 3
    assert reason in said.out + said.err
    assert "faster" in said.out or "×" in said.out


# What follows ends processes.


def _started(*args: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "loadgen", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def _wait_for_records(out: Path, lines: int) -> None:
    for _ in range(600):
        file = out / "records.jsonl"
        if file.exists() and file.read_bytes().count(b"\n") > lines:
            return
        time.sleep(0.05)
    raise AssertionError(f"{out} never held {lines} records")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_keeps_what_it_has(loadgate: Any, stock: str, tmp_path: Path, number: int) -> None:
    """Ctrl-C: exit 130 without a trace, what ended and what was in flight on disk, and judging says incomplete (4)."""
    out = tmp_path / "run"
    with _started("compare", stock, stock, "--profile", "team", "--requests", "400", "--out", out) as process:
        _wait_for_records(out, 20)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    run = Run.open(out)
    judged = loadgate("judge", out)

    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert run.end is not None
    assert run.end["reason"] == "interrupted"
    assert any(record.failure and record.failure.kind == "cancelled" for record in run.records())
    assert judged.code == 4
    assert "incomplete" in judged.out


_ANNOUNCING = """
import sys
from loadgen.cli import progress
class Announcing(progress.Progress):
    def ended(self, record):
        sys.stdout.write(record.id + "\\n"); sys.stdout.flush()
progress.Progress = Announcing
from loadgen.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_run_loses_no_record_that_had_ended(loadgate: Any, stock: str, tmp_path: Path, seed: int) -> None:
    """kill −9 at any moment: every request that had ended is on disk, every file readable, judging says incomplete."""
    out = tmp_path / "run"
    args = ["compare", stock, stock, "--profile", "team", "--passes", "2", "--requests", "60", "--out", str(out)]
    with subprocess.Popen([sys.executable, "-c", _ANNOUNCING, *args], stdout=subprocess.PIPE, text=True) as process:
        _wait_for_records(out, 2)
        time.sleep(random.Random(seed).uniform(0, 3))
        process.kill()
        announced = set((process.communicate()[0] or "").split())
    run = Run.open(out)
    kept = {record.id for record in run.records()}
    judged = loadgate("judge", out)

    assert announced - kept == set()
    assert len(kept) >= 2
    assert all(line.kind for line in run.telemetry())
    assert all(len(rows) for _, _, _, rows in run.scores())
    assert (judged.code, "incomplete" in judged.out) == (4, True)


def test_a_server_that_dies_is_said_and_what_was_measured_stays(loadgate: Any, stock: str, tmp_path: Path) -> None:
    """The reference dies in mid-run: exit 4, one sentence, and the completed passes are judged and printed."""
    recipe = launch.load_recipe("sim")
    out = tmp_path / "run"
    with launch.start(recipe, launch.parse_settings(recipe, FAST)) as reference:
        reference.wait_healthy(60)
        args = ["--profile", "team", "--passes", "3", "--requests", "40", "--reference", reference.url]
        with _started("compare", stock, stock, *args, "--out", out) as process:
            for _ in range(600):
                if (out / "scores" / "candidate-team-0.npy").exists():
                    break
                time.sleep(0.05)
            reference.stop()
            shown, err = process.communicate(timeout=60)

    assert process.returncode == 4
    assert "stopped answering" in err
    assert "Traceback" not in err
    assert "likelihood" in shown


# What is broken outside of us.


@pytest.mark.parametrize("where", ["FILE/sub", "/proc/nowhere/run", "TOO_LONG"])
def test_a_place_that_cannot_be_written_is_said(loadgate: Any, stock: str, tmp_path: Path, where: str) -> None:
    """A file for a folder, a folder that takes none, a name too long: exit 2, the place and the system's reason."""
    (tmp_path / "file").write_text("")
    out = {"FILE/sub": tmp_path / "file" / "sub", "TOO_LONG": tmp_path / ("a" * 300)}.get(where, Path(where))
    said = loadgate("run", stock, *QUICK, "--out", out)

    assert (said.code, "Traceback" in said.err) == (2, False)
    assert said.err.startswith("loadgate: /")


def test_more_lanes_than_files_are_refused(loadgate: Any, stock: str, tmp_path: Path) -> None:
    """The client's own want of files must not be counted as the server's failures; the sentence says what to raise."""
    said = loadgate("run", stock, "--lanes", "100000000", "--requests", "100000000", "--out", tmp_path / "run")

    assert said.code == 2
    assert "ulimit -n" in said.err


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_went_away_changes_no_outcome(stock: str, compared: Path, tmp_path: Path, stream: str) -> None:
    """`| head`: the exit code is the verdict's all the same, and a run goes on without its progress."""
    args = ["judge", str(compared)]
    if stream == "stderr":
        args = ["compare", stock, stock, "--profile", "team", "--passes", "1", *QUICK, *BRIEF]
        args += ["--out", str(tmp_path / "run")]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        argv = [sys.executable, "-m", "loadgen", *args]
        assert subprocess.run(argv, **(pipes | {stream: gone}), timeout=60, check=False).returncode == 3


def test_scores_of_two_models_are_never_mixed(loadgate: Any, stock: str, compared: Path, tmp_path: Path) -> None:
    """Neither within a run nor between two: exit 2 with both names."""
    other = tmp_path / "other"
    shutil.copytree(compared, other)
    asked = json.loads((other / "run.json").read_bytes())
    asked["reference"]["model"] = "another"
    (other / "run.json").write_text(json.dumps(asked))
    (other / "scores" / "stock-team-0.npy").unlink()
    said = loadgate("score", other, "--reference", stock)

    assert said.code == 2
    assert "holds scores of another; this reference serves sim" in said.err


def test_until_decided_stops_with_the_verdict(stock: str, loadgate: Any, tmp_path: Path) -> None:
    """Temperature .7 is found in the first pass of twenty: the rest is saved, probes too, and the run is whole."""
    out = tmp_path / "run"
    body = ["--candidate-extra-body", '{"temperature": 0.7}']
    said = loadgate(
        "compare",
        stock,
        stock,
        "--profile",
        "team",
        "--requests",
        "64",
        "--until-decided",
        *body,
        *BRIEF,
        "--out",
        out,
    )
    end = json.loads((out / "end.json").read_bytes())

    assert said.code == 1
    assert "decided after 1 of 20 passes: the other passes and the probes are saved" in said.err
    assert (end["reason"], Run.open(out).complete) == ("done", True)
    assert {record.pass_no for record in Run.open(out).records() if record.phase == "timed"} == {0}
    assert json.loads((out / "run.json").read_bytes())["until_decided"] is True


def test_until_decided_says_where_nothing_can_be_decided(stock: str, loadgate: Any, tmp_path: Path) -> None:
    """A stock server that cannot score: more passes bring nothing, and that is no decision."""
    said = loadgate(
        "compare",
        stock,
        stock,
        "--stock-dialect",
        "openai",
        "--profile",
        "team",
        "--until-decided",
        *QUICK,
        *BRIEF,
        "--out",
        tmp_path / "run",
    )

    assert said.code == 3
    assert "nothing can be decided for want of scores after 1 of 20 passes: the other passes are saved" in said.err


def test_until_decided_ends_with_its_budget(stock: str, loadgate: Any, tmp_path: Path) -> None:
    """Two passes at most, of too few tokens: UNDECIDED, after both."""
    out = tmp_path / "run"
    said = loadgate(
        "compare", stock, stock, "--profile", "team", *QUICK, *BRIEF, "--until-decided", "--passes", "2", "--out", out
    )

    assert (said.code, "decided after" in said.err) == (3, False)
    assert {record.pass_no for record in Run.open(out).records() if record.phase == "timed"} == {0, 1}
    assert loadgate("compare", stock, stock, "--plan", "contest", "--until-decided", "--out", tmp_path / "c").code == 2


@pytest.mark.parametrize("name", sorted(cli._EXIT_CODES))
def test_exit_codes_are_of_exceptions_that_exist(name: str) -> None:
    """They are named, so that a command imports none that it does not need; a name that moved would be a traceback."""
    if name.startswith("loadgen.ray_workers."):
        pytest.importorskip("ray")
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), kind), Exception)
