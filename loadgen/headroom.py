"""Whether this machine's limits let so many connections through. Said before they are opened, with what to raise."""

import errno
from pathlib import Path

_SPARE = 64  # the run's files, pages beside the API, the interpreter's own
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OWN_DESCRIPTORS = Path("/proc/self/fd")
_FOUND_OUT_LATE = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)


class NoRoom(Exception):
    """A limit of this machine, not the server, stands in the way: which, how far, what to raise. Exit 2."""


def check_descriptors(connections: int) -> None:
    """Raises NoRoom where this process may not open so many more sockets."""
    allowed = _descriptors_allowed()
    needed = _descriptors_used() + connections + _SPARE
    if allowed is not None and needed > allowed:
        raise NoRoom(
            f"{connections:,} connections need {needed:,} open files in one process, and this system allows "
            f"{allowed:,}: requests beyond that would fail here, and look like the server's failures. "
            f"Raise it with `ulimit -n {needed}`, or take fewer lanes."
        )


def check_ports(connections: int) -> None:
    """Raises NoRoom where so many connections to one address find no local port each."""
    ports = _ports()
    if ports is not None and connections > ports:
        raise NoRoom(
            f"{connections:,} connections to one address need a local port each, and this system gives out {ports:,}. "
            f'Widen the range with `sysctl net.ipv4.ip_local_port_range="1024 65535"`, or take fewer lanes.'
        )


def refused_here(error: OSError) -> NoRoom | None:
    """What to raise where a connection failed for want of files or ports of our own; None: the server's doing."""
    if error.errno not in _FOUND_OUT_LATE:
        return None
    if error.errno == errno.EADDRNOTAVAIL:
        return NoRoom(
            f"No local port was left for another connection ({error.strerror}). Widen net.ipv4.ip_local_port_range, "
            f"or take fewer lanes or a lower rate."
        )
    return NoRoom(
        f"No more files could be opened ({error.strerror}; this process may have {_descriptors_allowed()}). "
        f"Raise the limit with `ulimit -n`, or take fewer lanes or a lower rate."
    )


def _descriptors_allowed() -> int | None:
    """None where nothing is limited."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if allowed == resource.RLIM_INFINITY else allowed


def _descriptors_used() -> int:
    return len(list(_OWN_DESCRIPTORS.iterdir())) if _OWN_DESCRIPTORS.is_dir() else 0


def _ports() -> int | None:
    """How many local ports the system gives out; None where it does not say."""
    try:
        low, high = map(int, _PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return None
    return high - low + 1
