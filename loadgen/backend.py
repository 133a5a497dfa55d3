"""Which way timed requests go: our own sockets, or httpx's."""

from collections.abc import Iterable
from typing import Literal

from loadgen.endpoint import Endpoint, Transport, tls_context
from loadgen.plain import PlainTransport
from loadgen.transport import SocketTransport

Backend = Literal["socket", "httpx"]
Stamps = Literal["kernel", "read", "virtual"]


def timed_transport(endpoint: Endpoint, backend: Backend) -> Transport:
    """Raises EndpointConfigError where the endpoint's certificates cannot be read."""
    if backend == "socket":
        return SocketTransport(tls_context(endpoint))
    return PlainTransport(tls_context(endpoint), trust_env=not endpoint.on_loopback)


def stamps(ways: Iterable[tuple[Endpoint, Transport]]) -> Stamps:
    """Whose moments the arrivals are, for the anchor: the worst of the endpoints' where they differ."""
    kinds: set[Stamps] = {
        "read" if endpoint.url.startswith("https:") else getattr(transport, "stamps", "read")
        for endpoint, transport in ways
    }
    return kinds.pop() if len(kinds) == 1 else "read"
