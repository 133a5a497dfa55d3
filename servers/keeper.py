"""Stands between a program and the server that it starts, so that nothing is left when the program is killed.

    python keeper.py FD GRACE_S COMMAND…

Runs the command and ends as it ends. FD is the reading end of a pipe whose other end the program alone holds: the
kernel closes that with the program, however it dies, and the command and whatever it started are ended then. Signals on
a parent's death would not do: they are tied to the thread that started the child, and grandchildren do not get them.

Started by its path: the standard library alone is imported, and none of the engine's environment is touched.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

HELPERS_GRACE_S = 10.0
"""For helpers to remove their shared memory, once the server itself has ended."""

_LOOK_EVERY_S = 0.05
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>: whoever loses its parent below us becomes our child


def main(fd: int, grace_s: float, command: list[str]) -> None:
    _adopt_orphans()
    try:
        server = subprocess.Popen(command)
    except OSError as error:
        sys.exit(f"{error.filename or command[0]} cannot be used: {error.strerror}.")

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    threading.Thread(target=_until_alone, args=(fd, grace_s, server), daemon=True).start()
    code = server.wait()
    _end_children(HELPERS_GRACE_S)
    if code < 0:
        _die_by(-code)
    os._exit(code)  # the thread may still read


def _adopt_orphans() -> None:
    with suppress(OSError, AttributeError):  # Linux alone knows it; elsewhere the group has to do
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _until_alone(fd: int, grace_s: float, server: "subprocess.Popen[bytes]") -> None:
    """Waits for the program's end, which is read as the pipe's."""
    while os.read(fd, 1):
        pass
    with suppress(ProcessLookupError):
        server.send_signal(signal.SIGTERM)
    until = time.monotonic() + grace_s
    while server.poll() is None and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
    _end_children(0.0 if server.poll() is None else HELPERS_GRACE_S)
    os.killpg(0, signal.SIGKILL)  # where orphans were not adopted; and ourselves


def _end_children(grace_s: float) -> None:
    """SIGKILL for all who are left after the grace, and for the orphans that they leave to us, and so on."""
    until = time.monotonic() + grace_s
    while children := _children():
        for child in children:
            if time.monotonic() >= until:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(_LOOK_EVERY_S)


def _children() -> list[int]:
    """Ours, adopted ones too; none where the system does not tell."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _die_by(number: int) -> None:
    """As the server did, so that who looks at us learns what it was."""
    with suppress(OSError, ValueError):  # SIGKILL has no handler to take back
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
