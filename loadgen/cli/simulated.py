"""Whole comparisons on embedded engines in this process, under a clock that jumps: hours of load in seconds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen import virtual
from loadgen.cli.progress import Progress
from loadgen.cli.session import Session, World, conduct
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
    candidate_body: Mapping[str, Any] | None = None,
    probes: tuple[Probe, ...] = (),
    oracles: "Mapping[str, Settings] | None" = None,
    candidate_dialect: str | None = None,
) -> None:
    """Drives engines["stock"] and engines["candidate"] as `loadgate compare` does, into the run directory `out`.

    candidate_body: fields added to every request to the candidate, such as {"temperature": 0.9}.
    probes: what to send once the timed passes have ended. candidate_dialect: "openai" gets text alone of it.
    oracles: name → an engine that scores too.
    """
    from servers.sim.app import app

    async def main(clock: Clock) -> None:
        apps = {label: app(settings, clock) for label, settings in {**engines, **(oracles or {})}.items()}

        def way(endpoint: Endpoint) -> MemoryTransport:
            return MemoryTransport(apps[endpoint.label], clock)

        world = World(clock=clock, timed=way, side=way, throttled=False)
        candidate = Endpoint(
            url="http://127.0.0.1:2",
            label="candidate",
            dialect=candidate_dialect,
            extra_body=dict(candidate_body or {}),
        )
        session = _session(load, out, candidate, probes)
        beside = tuple(Endpoint(url="http://127.0.0.1:3", label=name) for name in oracles or ())
        await conduct(replace(session, oracles=beside), world, Progress(quiet=True))

    virtual.run(main)


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
