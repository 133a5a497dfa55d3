"""A server's process group: whether anybody is left in it, and its end."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_LOOK_EVERY_S = 0.05


def end(group: int, grace_s: float) -> None:
    """SIGKILL for whoever is still in the group after grace_s, in which helpers remove their shared memory."""
    until = time.monotonic() + grace_s
    while _inhabited(group) and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
    with suppress(ProcessLookupError, PermissionError):  # nobody left; on macOS EPERM where only zombies are
        os.killpg(group, signal.SIGKILL)


def _inhabited(group: int) -> bool:
    """Whether a member is left that is no zombie: in a container an orphan's zombie may stay for ever."""
    if not _PROC.is_dir():
        return _reachable(group)
    for stat in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            state, _parent, its_group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def _reachable(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
