"""Servers for the tests: the embedded engine by default, a real vLLM where LOADGATE_VLLM_PYTHON names one."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from servers import launch
from servers.recipes.vllm import PYTHON_VARIABLE

# Elsewhere new examples are tried at every run; what lands must not depend on which.
settings.register_profile("any machine", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("any machine")

# Under nohup, or behind a script's &, these come ignored, and every program started here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_number, signal.SIG_DFL)

OFF_BY = ("--kl", "0.03", "--kl", "0.01")

SimServer = Callable[..., launch.Server]
StartVllm = Callable[..., AbstractContextManager[launch.Server]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(PYTHON_VARIABLE):
        return
    for item in items:
        if "engine" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=f"{PYTHON_VARIABLE} names no Python with vLLM"))


@pytest.fixture(scope="session")
def sim_server() -> Iterator[SimServer]:
    """sim_server("sim-spec", kv_cache_tokens=4096) gives a healthy embedded engine; the same words give the same one.

    They live as long as the session: a test that ends or exhausts its server starts one of its own.
    """
    running: dict[tuple[str, ...], launch.Server] = {}
    with ExitStack() as stack:

        def get(recipe: str = "sim", **settings: object) -> launch.Server:
            key = (recipe, *_assignments(settings))
            if key not in running:
                running[key] = stack.enter_context(_started(recipe, settings))
                running[key].wait_healthy(timeout_s=60)
            return running[key]

        yield get


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds target/, draft/, kl-0.03/ and kl-0.01/, made by servers/tiny.py."""
    out = tmp_path_factory.mktemp("tiny")
    make_tiny(out, *OFF_BY)
    return out


def make_tiny(out: Path, *options: str) -> str:
    """What servers/tiny.py printed."""
    return with_torch(str(Path(__file__).parent.parent / "servers" / "tiny.py"), str(out), *options)


def with_torch(*arguments: str, given: str = "") -> str:
    """What the engine's own Python printed. given: on its standard input."""
    command = [os.environ[PYTHON_VARIABLE], *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def start_vllm(tiny_model: Path) -> StartVllm:
    """`with start_vllm("vllm-ngram") as server:` gives a healthy vLLM of the tiny model, served as "tiny"."""

    @contextmanager
    def started(recipe: str, **settings: object) -> Iterator[launch.Server]:
        if recipe == "vllm-draft":
            settings = {"draft": tiny_model / "draft", **settings}
        tiny = {"model": tiny_model / "target", "name": "tiny", "device": "cpu", "kv_cache_gib": 1}
        # Threads bound to one core starve there beside the client and the other server: two to four times slower.
        unbound = {"cpus": "nobind", "threads": 1}
        with _started(recipe, {**tiny, **unbound, **settings}) as server:
            server.wait_healthy(timeout_s=400)
            yield server

    return started


@pytest.fixture(scope="session")
def vllm_server(start_vllm: StartVllm) -> Iterator[launch.Server]:
    """The stock vLLM of the tiny model, one for the session."""
    with start_vllm("vllm") as server:
        yield server


def _started(recipe: str, settings: dict[str, object]) -> launch.Server:
    loaded = launch.load_recipe(recipe)
    return launch.start(loaded, launch.parse_settings(loaded, _assignments(settings)))


def _assignments(settings: dict[str, object]) -> list[str]:
    return sorted(f"{key}={value}" for key, value in settings.items())


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    asked = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *asked.split(), "-keyout", path, "-out", path.with_suffix(".crt")], check=True, capture_output=True
    )
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path
