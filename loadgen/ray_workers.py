"""Workers as actors of a Ray cluster, spread over its nodes. Every node needs loadgate of this version installed."""

import asyncio
import contextlib
import importlib.util
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from loadgen.drive import Clock
from loadgen.record import RunWriter
from loadgen.workers import Setup, Several, Worker, WorkerDied

_LEAD_S = 0.5
_ANSWERS_WITHIN_S = 5.0
_END_WITHIN_S = 10.0


class RayError(Exception):
    """Ray, or the cluster, is not there. Exit 2."""


@contextlib.asynccontextmanager
async def several(
    address: str, count: int | None, setups: Callable[[int], Sequence[Setup]], writer: RunWriter, clock: Clock
) -> AsyncIterator[Several]:
    """count None: one worker a node. Raises RayError, WorkerDied. The actors end with the block."""
    ray = _connected(address)
    try:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        made = [Actor(ray, setup, nodes[setup.index % len(nodes)]) for setup in setups(count or len(nodes))]
        crew = Several(made, writer, clock, _LEAD_S)
        try:
            await crew.begin()
            yield crew
        finally:
            await crew.close()
    finally:
        ray.shutdown()


def check(address: str) -> None:
    """Before anything is written: Ray is here, and something answers there. Raises RayError."""
    if importlib.util.find_spec("ray") is None:
        raise RayError("--ray needs Ray: pip install 'loadgate[ray]', here and on every node.")
    _check_answers(address)


def _connected(address: str) -> Any:
    import ray

    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RayError(f"There is no Ray cluster at {address}: {error}. Start one with `ray start --head`.") from error
    return ray


def _check_answers(address: str) -> None:
    """Ray itself tries for minutes. Raises RayError."""
    if address == "auto":
        return  # Ray's to find
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise RayError(f'--ray {address} is no address: give HOST:PORT as `ray start --head` prints it, or "auto".')
    try:
        socket.create_connection((host, int(port)), _ANSWERS_WITHIN_S).close()
    except OSError as error:
        raise RayError(f"No Ray cluster answers at {address} ({error}). Start one with `ray start --head`.") from None


class Actor:
    """A worker on some node, seen from the parent."""

    def __init__(self, ray: Any, setup: Setup, node: str) -> None:
        # Soft: where the node has no free processor, another one takes it.
        near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=True)
        self._ray, self._setup = ray, setup
        self._actor = ray.remote(num_cpus=1, scheduling_strategy=near)(Worker).remote(setup)

    async def call(self, method: str, *args: Any) -> Any:
        try:
            return await getattr(self._actor, method).remote(*args)
        except self._ray.exceptions.RayActorError as error:
            raise WorkerDied(
                f"Worker {self._setup.index} died on its node in the middle of the run: this pass is worth nothing. "
                f"Ray says: {str(error).strip()}"
            ) from error

    async def close(self) -> None:
        with contextlib.suppress(WorkerDied, TimeoutError):
            async with asyncio.timeout(_END_WITHIN_S):
                await self.call("end")
        self._ray.kill(self._actor)
