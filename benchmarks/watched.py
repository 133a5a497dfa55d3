"""Runs a command with all its processes and says what they cost: CPU, memory, wall time, and what others took."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_RSS_EVERY_S = 0.1
_MEMBERS_EVERY = 10  # looks at the memory: reading all of /proc costs milliseconds
_FAREWELL_S = 10.0  # for processes that outlive the command
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Spent:
    """By a command with all processes that it started."""

    began_ns: int  # monotonic, before the command was started
    wall_s: float
    cpu_s: float  # user and system, of every process
    rss_mb: float  # the largest sum seen of all processes' resident memory; pages that they share count for each
    machine_s: float  # CPU that the whole machine spent meanwhile, but on niced processes
    status: int  # 0: it ended well; negative: the signal that ended it


def pinned(core: int) -> list[str]:
    """What to put before a command so that it and its children run on one core; nothing where that is not offered."""
    several = (os.cpu_count() or 1) > 1
    return ["taskset", "-c", str(core)] if several and shutil.which("taskset") else []


def run(words: list[str], environment: Mapping[str, str], log: Path, limit_s: float) -> Spent:
    """Linux only. Raises subprocess.TimeoutExpired, with everything killed, where it takes longer than the limit."""
    # A process whose parent has gone becomes our child: so its CPU is counted too.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    machine_before_s = _machine_cpu_s()
    began_ns = time.monotonic_ns()
    with log.open("wb") as output:
        child = subprocess.Popen(
            words, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
    family = _Family(child.pid)
    try:
        while family.status is None:
            if time.monotonic_ns() > began_ns + limit_s * 1e9:
                raise subprocess.TimeoutExpired(words, limit_s)
            family.look()
            time.sleep(_RSS_EVERY_S)
        wall_s, status = (family.ended_ns - began_ns) / 1e9, family.status
    finally:
        family.end()
        child.returncode = family.status or 0  # reaped here, not by it
    machine_s = _machine_cpu_s() - machine_before_s
    return Spent(began_ns, wall_s, family.cpu_s, family.rss_mb, machine_s, status)


class _Family:
    """All processes of one session: memory while they live, CPU when they are reaped."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.status: int | None = None  # the leader's, once it has ended
        self.ended_ns = 0
        self.cpu_s, self.rss_mb = 0.0, 0.0
        self._members = [leader]
        self._looks = 0

    def look(self) -> None:
        if self._looks % _MEMBERS_EVERY == 0:
            self._members = _session(self.leader)
        self._looks += 1
        self.rss_mb = max(self.rss_mb, sum(map(rss_mb, self._members)))
        self._reap()

    def _reap(self) -> None:
        for pid in {self.leader, *self._members}:
            with contextlib.suppress(ChildProcessError):  # its own parent reaps it, and is charged with it
                done, status, used = os.wait4(pid, os.WNOHANG)
                if done:
                    self.cpu_s += used.ru_utime + used.ru_stime
                    self.rss_mb = max(self.rss_mb, used.ru_maxrss / 1024)
                if done == self.leader:
                    self.status, self.ended_ns = os.waitstatus_to_exitcode(status), time.monotonic_ns()

    def end(self) -> None:
        """Waits for what the leader left behind, then kills it."""
        until = time.monotonic() + (_FAREWELL_S if self.status is not None else 0)
        while (members := _session(self.leader)) and time.monotonic() < until + 2 * _FAREWELL_S:
            self._members = members
            if time.monotonic() > until:
                for pid in members:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(_RSS_EVERY_S / 2)


def _session(leader: int) -> list[int]:
    """Every process of the session, zombies too."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _stat(path, 3) == str(leader)]


def _stat(process: Path, field: int) -> str | None:
    """A field of /proc/PID/stat, counted behind the name, which may hold anything; None where the process has gone."""
    with contextlib.suppress(OSError):
        return (process / "stat").read_text().rpartition(") ")[2].split()[field]
    return None


def rss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20
    return 0.0


def _machine_cpu_s() -> float:
    """user, system, irq and softirq of all cores since the start. Not nice: that gives way."""
    user, _, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:])
    return (user + system + irq + softirq) * _TICK_S
