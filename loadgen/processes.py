"""Workers as processes of this host, each spoken to over a socket pair: a number, a method, its arguments; pickled."""

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from loadgen.drive import Clock
from loadgen.record import RunWriter
from loadgen.record.writer import worker_file
from loadgen.workers import Setup, Several, Worker, WorkerDied

_LEAD_S = 0.05
_END_WITHIN_S = 10.0
_LENGTH = struct.Struct("!Q")
_PROGRAM = "import sys; from loadgen.processes import main; main(int(sys.argv[1]))"


@contextlib.asynccontextmanager
async def several(setups: Sequence[Setup], writer: RunWriter, clock: Clock) -> AsyncIterator[Several]:
    """Raises WorkerDied where one does not come up. Whatever happens, none is left when this ends."""
    workers: list[Process] = []
    crew = Several(workers, writer, clock, _LEAD_S)
    try:
        for setup in setups:
            workers.append(await Process.start(setup))  # noqa: PERF401 - those that came up are to be ended
        await crew.begin()
        yield crew
    finally:
        await crew.close()


class Process:
    """A worker's process, seen from the parent."""

    def __init__(
        self, setup: Setup, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: Any
    ) -> None:
        self._setup, self._process, self._reader, self._writer = setup, process, reader, writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._died: WorkerDied | None = None
        self._listening = asyncio.create_task(self._listen())
        _send(writer, setup)

    @staticmethod
    async def start(setup: Setup) -> "Process":
        ours, theirs = socket.socketpair()
        with theirs:
            process = _launched(theirs)
        return Process(setup, process, *await asyncio.open_unix_connection(sock=ours))

    async def call(self, method: str, *args: Any) -> Any:
        if self._died is not None:
            raise self._died
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        _send(self._writer, (number, method, args))
        return await answer

    async def _listen(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, returned, raised = await _receive(self._reader)
                answer = self._waiting.pop(number)
                if answer.cancelled():
                    continue
                if raised is None:
                    answer.set_result(returned)
                else:
                    answer.set_exception(raised)
        self._died = await self._obituary()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._died)

    async def _obituary(self) -> WorkerDied:
        code = await self._ended()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        kept = worker_file(self._setup.run, self._setup.index)
        return WorkerDied(
            f"Worker {self._setup.index} (process {self._process.pid}) {how} in the middle of the run: its requests in "
            f"flight are lost, and this pass is worth nothing. What had ended by then is in {kept}."
        )

    async def close(self) -> None:
        self._writer.close()
        await self._ended()
        await asyncio.wait([self._listening])

    async def _ended(self) -> int:
        """Its exit code, given a while to end by itself."""
        try:
            return await asyncio.to_thread(self._process.wait, _END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)


def same_packages() -> dict[str, str]:
    """An environment in which Python -P finds the very packages that run here, wherever they were found."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}


def _launched(connection: socket.socket) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, str(connection.fileno())],
        pass_fds=[connection.fileno()],
        env=same_packages(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is for the parent, which says what to keep
    )


def _send(writer: asyncio.StreamWriter, message: Any) -> None:
    content = pickle.dumps(message)
    writer.write(_LENGTH.pack(len(content)) + content)


async def _receive(reader: asyncio.StreamReader) -> Any:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    # Both ends are this program, and the socket has no other.
    return pickle.loads(await reader.readexactly(length))


def main(descriptor: int) -> None:
    """The worker's process: answers until the parent closes the socket, or is gone."""
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    worker = Worker(await _receive(reader))
    answering: set[asyncio.Task[None]] = set()
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            task = asyncio.create_task(_answer(worker, writer, *await _receive(reader)))
            answering.add(task)
            task.add_done_callback(answering.discard)
    await worker.end()


async def _answer(worker: Worker, writer: asyncio.StreamWriter, number: int, method: str, args: Sequence[Any]) -> None:
    returned: Any = None
    raised: Exception | None = None
    try:
        returned = await getattr(worker, method)(*args)
    except asyncio.CancelledError:
        raised = WorkerDied("cut off")  # by `stop`; the parent no longer waits for this answer
    except Exception as error:  # noqa: BLE001 - raised again in the parent
        raised = _portable(error)
    _send(writer, (number, returned, raised))


def _portable(error: Exception) -> Exception:
    """The error with where it happened in a note; in other words where it would not survive the way."""
    told = traceback.format_exc()
    error.add_note(told)
    try:
        pickle.loads(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError):
        return RuntimeError(told)
    return error
