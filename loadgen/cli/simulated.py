"""Whole comparisons on embedded engines in this process, under a clock that jumps: hours of load in seconds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen import virtual
from loadgen.cli.progress import Progress
from loadgen.cli.session import Decision, Session, World, conduct
from loadgen.compare import Load
from loadgen.endpoint import Endpoint
from loadgen.memory import MemoryTransport
from loadgen.record import Probe
from loadgen.telemetry import Clock

if TYPE_CHECKING:
    from servers.sim.settings import Settings


def compare(
    engines: "Mapping[str, Settings]",
    load: Load,
    out: Path,
    candidate: Mapping[str, Any] | None = None,
    probes: tuple[Probe, ...] = (),
    decided: "Callable[[Path], Decision] | None" = None,
) -> None:
    """Drives engines["stock"] and engines["candidate"] as `loadgate compare` does, into the run directory `out`.

    engines: of other names are oracles, which only score.
    candidate: fields of its endpoint, such as {"dialect": "openai"}, which gets text alone of it.
    probes: what to send once the timed passes have ended.
    decided: asked between two rounds whether that is enough.
    """
    from servers.sim.app import app

    async def main(clock: Clock) -> None:
        apps = {label: app(settings, clock) for label, settings in engines.items()}

        def way(endpoint: Endpoint) -> MemoryTransport:
            return MemoryTransport(apps[endpoint.label], clock)

        world = World(clock=clock, timed=way, side=way, throttled=False, aside=_at_once)
        described = Endpoint.model_validate({"url": "http://127.0.0.1:2", "label": "candidate", **(candidate or {})})
        session = _session(load, out, described, probes)
        beside = tuple(
            Endpoint(url="http://127.0.0.1:3", label=name) for name in engines if name not in ("stock", "candidate")
        )
        await conduct(replace(session, oracles=beside, decided=decided), world, Progress(quiet=True))

    virtual.run(main)


async def _at_once(call: Callable[..., Any], *given: Any) -> Any:
    """No thread can be waited for where time jumps."""
    return call(*given)


def _session(load: Load, out: Path, candidate: Endpoint, probes: tuple[Probe, ...]) -> Session:
    return Session(
        command="compare",
        endpoints=(Endpoint(url="http://127.0.0.1:1", label="stock"), candidate),
        load=load,
        out=out,
        roles={"stock": "stock", "candidate": "candidate"},
        plan="strict",
        probes=probes,
    )
