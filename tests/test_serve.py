"""`loadgate serve` keeps a server in the foreground: its URL, its end and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LOADGATE = [sys.executable, "-c", "from loadgen.cli import main; main()"]


def serve(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*LOADGATE, "serve", *words], capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def serving(*words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [*LOADGATE, "serve", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            yield run
        finally:
            run.terminate()


def answered(run: "subprocess.Popen[str]") -> str:
    assert run.stdout is not None
    return run.stdout.readline()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_print_shows_the_command_alone() -> None:
    """Nothing is started, and standard output holds one line that a shell takes."""
    done = serve("sim", "--port", "8123", "--set", "model_seed=3", "--print")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{sys.executable} -m servers.sim --port 8123 --model-seed 3\n"


def test_print_as_json() -> None:
    """Arguments and environment as a program wants them."""
    done = serve("vllm", "--set", "model=m", "--set", "python=/p", "--set", "device=cpu", "--print", "--json")
    shown = json.loads(done.stdout)
    assert shown["argv"][:3] == ["/p", "-m", "vllm.entrypoints.openai.api_server"]
    assert shown["env"]["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_interrupt_is_the_normal_end(tmp_path: Path) -> None:
    """It prints its URL once it answers; after Ctrl-C the server is gone and the exit code is 0."""
    log = tmp_path / "log"
    with serving("sim", "--log", str(log)) as run:
        url = re.fullmatch(r"(http://\S+) serves sim\n", answered(run))
        assert url is not None
        with urllib.request.urlopen(f"{url[1]}/health", timeout=10) as answer:
            assert answer.status == 200
        run.send_signal(signal.SIGINT)
        assert run.wait(30) == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url[1]}/health", timeout=10)
    assert log.read_text().startswith("$ ")


def test_server_that_dies_is_exit_4(tmp_path: Path) -> None:
    """The reason goes to standard error."""
    with serving("sim", "--log", str(tmp_path / "log"), "--json") as run:
        started = json.loads(answered(run))
        assert started["models"] == ["sim"]
        os.kill(started["pid"], signal.SIGKILL)
        assert run.wait(30) == 4
        assert run.stderr is not None
        assert "was ended by SIGKILL" in run.stderr.read()


def test_terminated_serve_takes_its_server_along(tmp_path: Path) -> None:
    """SIGTERM, as from a service manager."""
    with serving("sim", "--log", str(tmp_path / "log"), "--json") as run:
        started = json.loads(answered(run))
        run.terminate()
        assert run.wait(30) == 143
    assert not alive(started["pid"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["smi"], "There is no recipe 'smi'. Did you mean sim"),
        (["sim", "--set", "row=3"], "There is no setting 'row' here. Did you mean rows"),
        (["sim", "--port", "70000"], "70000"),
    ],
)
def test_wrong_usage_is_exit_2(words: list[str], said: str) -> None:
    """The nearest names, and no traceback."""
    done = serve(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_help_has_an_example() -> None:
    """One line to copy."""
    assert "Example: loadgate serve vllm --set model=" in serve("--help").stdout
