"""Recipe → process group, log file, wait until healthy, stop: no server outlives the program that started it.

Between the two stands a keeper, which ends the server where the program is killed and can do nothing any more.
"""

import atexit
import errno
import http.client
import importlib
import json
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, cast

from pydantic import BaseModel, ValidationError

from loadgen.record import nearest
from servers import group, keeper, recipes
from servers.causes import cause_of
from servers.recipes import Command, Recipe

HOST = "127.0.0.1"
Progress = Callable[[float, str], None]

_LOOK_EVERY_S = 0.2
_ANSWER_WITHIN_S = 5.0
_GRACE_S = 30.0
_TAIL_BYTES = 65_536
_TAIL_LINES = 12


class RecipeError(Exception):
    """No such recipe, or settings that it does not take: the sentence says what there is instead."""


class LaunchFailed(Exception):
    """A server that we wanted to start did not come up: what happened, the end of its log, and what to do."""


def recipe_names() -> list[str]:
    """All recipes by their keys, sorted."""
    return sorted(recipes.key(module.name) for module in pkgutil.iter_modules(recipes.__path__))


def load_recipe(name: str) -> Recipe:
    """The recipe of that key. Raises RecipeError with the nearest names."""
    if name not in recipe_names():
        raise RecipeError(f"There is no recipe {name!r}. {nearest(name, recipe_names())}")
    return cast(Recipe, importlib.import_module(f"servers.recipes.{recipes.module(name)}"))


def parse_settings(recipe: Recipe, assignments: Iterable[str]) -> BaseModel:
    """The recipe's settings from "key=value" strings, the last one of a key winning. Raises RecipeError."""
    given = dict(_split(assignment) for assignment in assignments)
    known = recipe.Settings.model_fields
    for key in given:
        if key not in known:
            raise RecipeError(f"There is no setting {key!r} here. {nearest(key, known)}")
    try:
        return recipe.Settings.model_validate(given)
    except ValidationError as error:
        raise RecipeError("\n".join(_sentence(recipe, issue) for issue in error.errors())) from error


def _split(assignment: str) -> tuple[str, str]:
    key, equals, value = assignment.partition("=")
    if not equals:
        raise RecipeError(f"A setting is written key=value; {assignment!r} has no '='.")
    return key.strip().replace("-", "_"), value


def _sentence(recipe: Recipe, issue: Mapping[str, Any]) -> str:
    """One line on one wrong or missing setting, with its own description of what belongs there."""
    message = str(issue["msg"]).removeprefix("Value error, ")
    if not issue["loc"]:
        return message
    key = str(issue["loc"][0])
    about = recipe.Settings.model_fields[key].description
    meaning = f" ({about})" if about else ""
    if issue["type"] == "missing":
        return f"The setting {key} is needed{meaning}: --set {key}=…"
    return f"The setting {key}{meaning}: {message}."


def start(recipe: Recipe, settings: BaseModel, port: int | None = None, log: Path | None = None) -> "Server":
    """Start the recipe's server in a process group of its own; it is not healthy yet.

    port: a free one where None. log: a new file in the temporary folder where None; an existing file is continued.
    Raises LaunchFailed where the port is taken or the program cannot be run.
    """
    port = free_port() if port is None else port
    return start_command(recipe.command(settings, port), port, log)


def start_command(command: Command, port: int, log: Path | None = None) -> "Server":
    """Like `start`, for any command whose server will listen on `port` of 127.0.0.1."""
    _refuse_taken(port)
    _clean_up_on_signals()
    log = log or _new_log()
    environment = {**os.environ, **command.env, **{name: os.environ[ours] for name, ours in command.secrets.items()}}
    _refuse_missing(command.argv[0], environment)
    theirs, ours = os.pipe()
    # Isolated: what the engine's environment says to Python is for the engine.
    kept = [sys.executable, "-I", "-S", keeper.__file__, str(theirs), str(_GRACE_S), *command.argv]
    try:
        with log.open("ab") as sink:
            log_from = sink.tell()
            sink.write(f"$ {command.shell()}\n".encode())
            sink.flush()
            process = subprocess.Popen(
                kept,
                env=environment,
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        os.close(ours)
        raise LaunchFailed(f"{error.filename or command.argv[0]} cannot be used: {error.strerror}.") from error
    finally:
        os.close(theirs)
    key_name = next(iter(command.secrets.values()), None)
    key = os.environ[key_name] if key_name else None
    return Server(Kept(process, ours), port, log, log_from, api_key=key)


@dataclass(frozen=True, slots=True)
class Kept:
    """The keeper, and our end of its pipe: while that is open, it knows us alive."""

    process: "subprocess.Popen[bytes]"
    pipe: int


class Server:
    """One server with its process group. `with` stops it on leaving; at the latest it stops at our exit."""

    def __init__(self, kept: Kept, port: int, log: Path, log_from: int, api_key: str | None) -> None:
        self.port = port
        self.log = log
        self._log_from = log_from  # bytes before it are an earlier server's
        self._process, self._pipe = kept.process, kept.pipe
        self._api_key = api_key
        self._stopped = False
        atexit.register(self.stop)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The keeper's, which leads the group and passes signals on."""
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_healthy(self, timeout_s: float = 1800.0, progress: Progress | None = None) -> list[str]:
        """Wait for /health, then for /v1/models; returns the names of the models served.

        progress is called several times a second with the seconds waited and the log's last line.
        Raises LaunchFailed when the server dies or the time is over; a server that is only slow keeps running.
        """
        began = time.monotonic()
        while True:
            models = self._models()
            if not self.alive():
                raise LaunchFailed(self._obituary())
            if models:
                return models
            waited = time.monotonic() - began
            if waited > timeout_s:
                raise LaunchFailed(f"{self.url} is not healthy after {timeout_s:.0f} s.\n{self._log_end()}")
            if progress:
                progress(waited, self._last_lines(1))
            time.sleep(_LOOK_EVERY_S)

    def wait(self) -> None:
        """Wait until the server ends by itself, which is always a failure. Raises LaunchFailed."""
        self._process.wait()
        raise LaunchFailed(self._obituary())

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Ask the server to end (SIGTERM), then end its whole group (SIGKILL). Safe to call again.

        An exception on the way, as by a second Ctrl-C, cuts the grace short.
        """
        if self._stopped:
            return  # the group's number may be another's by now
        helpers_grace_s = 0.0
        try:
            if self.alive():
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(grace_s)
                    helpers_grace_s = keeper.HELPERS_GRACE_S
        finally:
            group.end(self.pid, helpers_grace_s)
            self._process.wait()
            os.close(self._pipe)
            self._stopped = True
            atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _models(self) -> list[str]:
        """The models served; empty while the server is not ready."""
        if self._get("/health") is None:
            return []
        try:
            return [str(model["id"]) for model in json.loads(self._get("/v1/models") or b"{}").get("data", [])]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []

    def _get(self, path: str) -> bytes | None:
        """The body of a 200; None for any other answer and for none."""
        # http.client knows no proxies, which must never see a request to this machine.
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_WITHIN_S)
        try:
            connection.request(
                "GET", path, headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
            )
            answer = connection.getresponse()
            return answer.read() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _obituary(self) -> str:
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        cause = cause_of(self._tail(), code)
        return f"The server on {self.url} {how}.{f' {cause}' if cause else ''}\n{self._log_end()}"

    def _log_end(self) -> str:
        return f"The end of {self.log}:\n{self._last_lines(_TAIL_LINES)}"

    def _last_lines(self, count: int) -> str:
        lines = [line for line in self._tail().splitlines() if line.strip()]
        return "\n".join(lines[-count:])

    def _tail(self) -> str:
        """The end of the log, without the key should the server have written it."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_from, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
        return text.replace(self._api_key, "***") if self._api_key else text


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _refuse_taken(port: int) -> None:
    """Without this the health check would be answered by somebody else's server. Raises LaunchFailed."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise LaunchFailed(
                f"Port {port} of {HOST} cannot be used: {error.strerror}. Choose another with --port."
            ) from error


def _refuse_missing(program: str, environment: Mapping[str, str]) -> None:
    """Said here, and not by the keeper in the log. Raises LaunchFailed."""
    if shutil.which(program, path=environment.get("PATH")) is None:
        why = errno.EACCES if Path(program).exists() else errno.ENOENT
        raise LaunchFailed(f"{program} cannot be used: {os.strerror(why)}.")


def _new_log() -> Path:
    handle, name = tempfile.mkstemp(prefix="loadgate-", suffix=".log")
    os.close(handle)
    return Path(name)


def _clean_up_on_signals() -> None:
    """From the first server on, SIGTERM and SIGHUP raise SystemExit(128 + signal): `with` and atexit then clean up.

    Their default would end us on the spot and leave the servers behind. A program that has decided about them itself
    is left alone, and so is a thread other than the main one, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
