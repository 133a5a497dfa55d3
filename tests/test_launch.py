"""Servers come up, tell why when they do not, and never outlive the program that started them."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from servers import launch
from servers.causes import cause_of
from servers.recipes import Command

# A server in miniature: /health and /v1/models. DEAF makes it ignore SIGTERM and start a child that does too.
SERVER = """
import http.server, json, os, signal, subprocess, sys, time
if os.environ.get("DEAF"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    print("child", subprocess.Popen([sys.executable, "-c", child]).pid, flush=True)
key = os.environ.get("KEY")
print("the key is", key, flush=True)

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = key is None or self.headers["Authorization"] == f"Bearer {key}" or self.path == "/health"
        body = json.dumps({"data": [{"id": "small"}]}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

time.sleep(float(os.environ.get("LOADING", 0)))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


def small_server(port: int, env: dict[str, str] | None = None, secrets: dict[str, str] | None = None) -> Command:
    return Command([sys.executable, "-c", SERVER, str(port)], env or {}, secrets or {})


def program(text: str, *words: str) -> Command:
    return Command([sys.executable, "-c", textwrap.dedent(text), *words])


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether no such process is left, or only its unreaped rest."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def test_healthy_after_loading(log: Path) -> None:
    """A server is healthy once it names its models; the wait reports the time and the log's last line."""
    port = launch.free_port()
    seen: list[tuple[float, str]] = []
    with launch.start_command(small_server(port, {"LOADING": "1"}), port, log) as server:
        models = server.wait_healthy(30, progress=lambda waited_s, line: seen.append((waited_s, line)))
        assert models == ["small"]
        assert server.url == f"http://127.0.0.1:{port}"
        assert server.alive()
    assert not server.alive()
    assert seen[-1][0] > 0.3
    assert "the key is None" in [line for _, line in seen]


def test_embedded_engine_starts_and_stops() -> None:
    """The recipe sim needs nothing but this environment."""
    recipe = launch.load_recipe("sim")
    settings = launch.parse_settings(recipe, ["model=mini"])
    with launch.start(recipe, settings) as server:
        assert server.wait_healthy(60) == ["mini"]
    assert gone(server.pid)
    server.log.unlink()


def test_taken_port_is_refused_before_the_start(log: Path) -> None:
    """Else the other server would answer the health check."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(launch.LaunchFailed, match=f"Port {port} .* cannot be used"):
            launch.start_command(small_server(port), port, log)
    assert not log.exists()


def test_missing_program_is_told(log: Path) -> None:
    """A wrong python= is a sentence, not a traceback."""
    with pytest.raises(launch.LaunchFailed, match=r"/no/python cannot be used: No such file"):
        launch.start_command(Command(["/no/python"]), launch.free_port(), log)


def test_early_death_tells_code_cause_and_log(log: Path) -> None:
    """The known cause stands before the log's last lines."""
    command = program("import sys; sys.exit('ModuleNotFoundError: No module named vllm')")
    server = launch.start_command(command, launch.free_port(), log)
    with pytest.raises(launch.LaunchFailed) as failed:
        server.wait_healthy(30)
    server.stop()
    said = str(failed.value)
    assert "ended with exit code 1. That Python has no such engine." in said
    assert f"The end of {log}:" in said
    assert said.endswith("ModuleNotFoundError: No module named vllm")


def test_log_of_an_earlier_server_is_kept_and_not_read(log: Path) -> None:
    """A log is continued; what an earlier server died of is not this one's cause."""
    log.write_text("No module named vllm\n")
    server = launch.start_command(program("raise SystemExit(3)"), launch.free_port(), log)
    with server, pytest.raises(launch.LaunchFailed) as failed:
        server.wait_healthy(30)
    assert log.read_text().startswith("No module named vllm\n")
    assert "vllm" not in str(failed.value)


def test_death_by_signal_is_named(log: Path) -> None:
    """SIGKILL without a word in the log is most often the system's want of memory."""
    command = program("import os; os.kill(os.getpid(), 9)")
    server = launch.start_command(command, launch.free_port(), log)
    with server, pytest.raises(launch.LaunchFailed, match=r"was ended by SIGKILL\. Something killed it"):
        server.wait_healthy(30)


def test_never_healthy(log: Path) -> None:
    """A limit ends the wait, and the sentence says which."""
    command = program("import time; print('still loading', flush=True); time.sleep(600)")
    server = launch.start_command(command, launch.free_port(), log)
    with server, pytest.raises(launch.LaunchFailed, match=r"not healthy after 1 s\.\n.*\n(.*\n)*still loading"):
        server.wait_healthy(timeout_s=1)


@pytest.mark.parametrize(
    ("log_line", "said"),
    [
        ("/usr/bin/python: Error while finding module: No module named 'vllm'", "no such engine"),
        ("RuntimeError: operator torchvision::nms does not exist", "torchcodec"),
        ("api_server.py: error: unrecognized arguments: --no-such 3", "the flag --no-such 3."),
        ("OSError: [Errno 98] Address already in use", "Its port was taken"),
        ("[Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use", "Its port"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "ran out of memory"),
        ("ValueError: No available memory for the cache blocks.", "too small for the KV cache"),
        ("ValueError: To serve at least one request, 9 GiB is larger than the available KV cache memory", "too small"),
        ("OSError: x is not a local folder and is not a valid model identifier", "model was not found"),
        ("api_server.py: error: argument --dtype: invalid choice: 'x'", "refused one of its settings"),
    ],
)
def test_known_causes(log_line: str, said: str) -> None:
    """Each cause that a log shows is told with what to do."""
    assert said in str(cause_of(f"INFO: starting\n{log_line}\nINFO: bye", 1))


def test_unknown_cause_is_not_guessed() -> None:
    """A log that shows nothing known gives no sentence."""
    assert cause_of("INFO: bye", 1) is None


def test_whole_group_is_ended_even_if_deaf(log: Path) -> None:
    """Server and child ignore SIGTERM: after the grace both are killed, and a second stop does nothing."""
    port = launch.free_port()
    server = launch.start_command(small_server(port, {"DEAF": "1"}), port, log)
    server.wait_healthy(30)
    child = int(log.read_text().split("child ")[-1].split()[0])
    server.stop(grace_s=0.3)
    assert gone(server.pid)
    assert gone(child)
    server.stop()


def test_exception_ends_the_server(log: Path) -> None:
    """Leaving the block by an exception stops it too."""
    port = launch.free_port()
    with pytest.raises(ZeroDivisionError), launch.start_command(small_server(port), port, log) as server:
        raise ZeroDivisionError
    assert gone(server.pid)


OWNER = """
import sys, time
from pathlib import Path
from servers import launch
recipe = launch.load_recipe("sim")
server = launch.start(recipe, launch.parse_settings(recipe, []), log=Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -2)])
def test_owner_ended_by_a_signal_leaves_nothing(log: Path, number: int, code: int) -> None:
    """Even a program that never entered the server's block takes it along."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(log)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(number)
        assert owner.wait(30) == code
    assert gone(pid)


BROKEN_OFF = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[4])
import test_launch
from servers import launch
port, launch._GRACE_S = int(sys.argv[2]), 1.0
server = launch.start_command(test_launch.small_server(port, {"DEAF": sys.argv[3]}), port, Path(sys.argv[1]))
print(server.pid, flush=True)
if sys.argv[3]:
    server.wait_healthy(30)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("deaf", ["", "1"], ids=["at its start", "deaf, with a child"])
def test_owner_killed_outright_leaves_nothing(log: Path, deaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 gives a program no chance to clean up: its keeper does, and the port is free again."""
    port = launch.free_port()
    words = [str(log), str(port), deaf, str(Path(__file__).parent)]
    with subprocess.Popen(
        [sys.executable, "-c", BROKEN_OFF, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert owner.stdout.readline() == "up\n"
        owner.kill()
    assert gone(pid, within_s=15)
    if deaf:
        assert gone(int(log.read_text().split("child ")[-1].split()[0]))
    launch._refuse_taken(port)


def test_children_that_left_the_group_are_ended_too(log: Path) -> None:
    """A daemon of its own session, orphaned on purpose: the keeper adopts it."""
    daemon = """
        import subprocess, sys, time
        child = [sys.executable, "-c", "import time; time.sleep(600)"]
        print("child", subprocess.Popen(child, start_new_session=True).pid, flush=True)
        time.sleep(600)
    """
    server = launch.start_command(program(daemon), launch.free_port(), log)
    until = time.monotonic() + 30
    while not (said := re.search(r"^child (\d+)$", log.read_text(), re.MULTILINE)) and time.monotonic() < until:
        time.sleep(0.05)
    assert said is not None
    child = int(said[1])
    os.kill(server.pid, signal.SIGTERM)
    assert gone(child, within_s=20)
    server.stop()


def test_key_is_used_and_never_written_by_us(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The health check carries the key; the command as shown and what we quote of the log do not."""
    monkeypatch.setenv("MY_KEY", "s3cret-key")
    port = launch.free_port()
    command = small_server(port, secrets={"KEY": "MY_KEY"})
    assert command.shell().startswith('KEY="$MY_KEY" ')
    with launch.start_command(command, port, log) as server:
        assert server.wait_healthy(30) == ["small"]
        assert "s3cret-key" not in log.read_text().splitlines()[0]
        os.kill(server.pid, signal.SIGTERM)
        with pytest.raises(launch.LaunchFailed) as failed:
            server.wait()
    assert "the key is ***" in str(failed.value)
    assert "s3cret-key" not in str(failed.value)
