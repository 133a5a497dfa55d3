"""What `run`, `compare` and `demo` share: open the endpoints, drive, score, write it all down."""

import asyncio
import datetime
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loadgen import compare, next_token, server_settings
from loadgen.backend import Backend, stamps, timed_transport
from loadgen.cli.described import described, described_reference
from loadgen.cli.progress import Progress
from loadgen.discovery import open_endpoint
from loadgen.drive import Alone, Crew
from loadgen.endpoint import Endpoint, Opened, Transport
from loadgen.held import Held, stored
from loadgen.oracle import Oracle
from loadgen.oracle import checked as checked_oracles
from loadgen.record import Probe, Record, RunWriter, Setting
from loadgen.record.writer import host_facts, take_anchor, write_oracle
from loadgen.score import CannotScore, ScoredPass, check_reference, score_pass, throttle
from loadgen.telemetry import Clock, Observer

if TYPE_CHECKING:
    from loadgen.probe import Gathering
    from loadgen.score import Scores

_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class Drivers:
    """Who sends the load, and how."""

    workers: int | None = None  # None: this process alone; on a Ray cluster, one a node
    ray: str | None = None  # a cluster's address
    backend: Backend = "socket"


def drivers_from(given: Mapping[str, Any], progress: Progress) -> Drivers:
    """Raises RayError."""
    if given["http_backend"] == "httpx":
        progress.say(
            "warning: --http-backend httpx stamps chunks when Python reads them, after whatever else it had to do: "
            "latencies under load are the client's as well as the server's. It is for proxies and HTTP/2."
        )
    if given["ray"] is not None:
        from loadgen import ray_workers

        ray_workers.check(given["ray"])
    return Drivers(given["workers"], given["ray"], given["http_backend"])


def held_by(drivers: Drivers) -> Held | None:
    """What all processes together hold, if this machine was calibrated; of a cluster's nodes nothing is known."""
    one = stored() if drivers.ray is None else None
    return None if one is None else one.times(drivers.workers or 1)


Decision = Literal["open", "enough", "hopeless", "different"]
"""Between two rounds: go on; no more timed passes; the same as they bring no verdict, for want of scores; nor probes
either, as they cannot change the verdict."""


@dataclass(frozen=True, slots=True)
class Session:
    """All that was asked of one run; what run.json says, without secrets."""

    command: str
    endpoints: tuple[Endpoint, ...]  # stock first
    load: compare.Load
    out: Path
    roles: dict[str, str] | None = None
    reference: Endpoint | None = None  # None: the first endpoint
    oracles: tuple[Endpoint, ...] = ()  # likely wrong models, which score too
    scored: bool = True
    plan: str | None = None
    submission: dict[str, Any] | None = None
    drivers: Drivers = Drivers()
    decided: Callable[[Path], Decision] | None = None  # of what is there between two rounds
    probes: tuple[Probe, ...] = ()  # sent when the timed passes have ended
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """Everything timed or outside: the clock, and the way to a server. Tests give a virtual one."""

    clock: Clock
    timed: Callable[[Endpoint], Transport]
    side: Callable[[Endpoint], Transport | None]
    throttled: bool = True
    aside: Callable[..., Awaitable[Any]] = asyncio.to_thread  # calls what takes seconds


def real_world(backend: Backend = "socket") -> World:
    return World(
        clock=time.monotonic_ns,
        timed=lambda endpoint: timed_transport(endpoint, backend),
        side=lambda endpoint: None,
    )


async def conduct(session: Session, world: World, progress: Progress) -> None:
    """Drives and scores; the run directory holds everything when this returns, or raises.

    Raises EndpointError, ReferenceDied, WorkerDied, RunExists, PromptsError; on cancellation what is there stays,
    marked so.
    """
    async with AsyncExitStack() as stack:
        sides = [await _opened(endpoint, world, stack) for endpoint in session.endpoints]
        told = [await server_settings.settings(side) for side in sides]
        _say_differences(session, told, progress)
        reference = await _reference(session, sides, world, stack, progress)
        oracles = await _oracles(session, reference, world, stack)
        writer = RunWriter(session.out, _asked(session, sides, reference, told), take_anchor(_stamps(sides)))
        for oracle in oracles:
            write_oracle(session.out, oracle.name, described(oracle.opened))
        counts = {"passes": 0, "requests": 0, "failed": 0}
        probes = _gathering(session)
        this_round: dict[tuple[str, str, int], list[Record]] = {}
        reason: Any = "failed"
        decision: Decision = "open"
        try:
            crew = await _crew(session, sides, world, writer, stack)

            def observe(side: Opened) -> Observer:
                return Observer(side, world.clock, writer.telemetry)

            async with aclosing(compare.passes(sides, session.load, crew, observe, progress)) as passes:
                async for finished in passes:
                    counts["passes"] += 1
                    counts["requests"] += finished.tally.requests
                    counts["failed"] += finished.tally.failed
                    scores = None
                    if reference is not None:
                        scores = await _score(reference, finished, writer, progress, world)
                        this_round[finished.endpoint, finished.profile, finished.pass_no] = finished.records
                        if finished.ends_round:
                            await _score_texts(reference, this_round, writer, progress, world)
                            this_round = {}
                    for oracle in oracles:
                        await _score(oracle, finished, writer, progress, world)
                    if probes is not None:
                        probes.add(finished, scores)
                    if finished.ends_round:
                        decision = await _decision(session, finished.pass_no + 1, world, progress)
                    if decision != "open":
                        break
            if probes is not None and decision != "different":
                await _probe(session, probes, _Ways(sides, reference, crew, writer), world, progress)
            reason = "done"
        except asyncio.CancelledError:
            reason = "interrupted"
            raise
        finally:
            writer.end(reason, counts)
            progress.clear()


async def _decision(session: Session, rounds: int, world: World, progress: Progress) -> Decision:
    """Whether the verdict is in, where the session ends with it."""
    if session.decided is None:
        return "open"
    decision: Decision = await world.aside(session.decided, session.out)
    saved = ["the other passes"] * (rounds < session.load.passes)
    saved += ["the probes"] * (decision == "different" and bool(session.probes))
    if decision != "open" and saved:
        what = "nothing can be decided for want of scores" if decision == "hopeless" else "decided"
        progress.say(f"{what} after {rounds} of {session.load.passes} passes: {' and '.join(saved)} are saved")
    return decision


async def _opened(endpoint: Endpoint, world: World, stack: AsyncExitStack) -> Opened:
    timed = world.timed(endpoint)
    stack.push_async_callback(timed.aclose)
    opened = await open_endpoint(endpoint, timed, world.side(endpoint))
    stack.push_async_callback(opened.close)
    return opened


def _stamps(sides: Sequence[Opened]) -> Any:
    return stamps((side.endpoint, side.timed._transport) for side in sides)


async def _crew(
    session: Session, sides: Sequence[Opened], world: World, writer: RunWriter, stack: AsyncExitStack
) -> Crew:
    """This process alone, or as many as were asked for; they end with the stack."""
    asked = session.drivers
    if asked.ray is None and asked.workers in (None, 1):
        return Alone(world.clock, writer.record)
    from loadgen import processes, ray_workers, workers

    def setups(count: int) -> list[workers.Setup]:
        return workers.Setup.all(count, sides, asked.backend, writer)

    if asked.ray is not None:
        several = ray_workers.several(asked.ray, asked.workers, setups, writer, world.clock)
    else:
        several = processes.several(setups(asked.workers or 1), writer, world.clock)
    return await stack.enter_async_context(several)


async def _reference(
    session: Session, sides: Sequence[Opened], world: World, stack: AsyncExitStack, progress: Progress
) -> Opened | None:
    """The server that scores; None where nothing is to be scored or it cannot (said at once, not at the end)."""
    if not session.scored:
        return None
    reference = sides[0] if session.reference is None else await _opened(session.reference, world, stack)
    try:
        checked = await check_reference(reference)
    except CannotScore as error:
        progress.say(f"warning: {error}")
        return None
    say_how_it_scores(progress, checked)
    return checked


async def _oracles(
    session: Session, reference: Opened | None, world: World, stack: AsyncExitStack
) -> tuple[Oracle, ...]:
    """None where no reference scores: an oracle's say is beside the reference's. Raises EndpointError,
    EndpointConfigError."""
    if reference is None:
        return ()
    return await checked_oracles(reference, [await _opened(endpoint, world, stack) for endpoint in session.oracles])


async def _score(
    by: Opened | Oracle, finished: compare.Finished, writer: RunWriter, progress: Progress, world: World
) -> "Scores":
    title = f"{finished.profile} pass {finished.pass_no + 1} {finished.endpoint}: scoring"
    name = by.name if isinstance(by, Oracle) else None
    server = by.opened if isinstance(by, Oracle) else by
    scores = await _scores(server, title if name is None else f"{title} by {name}", finished.records, progress, world)
    writer.scores(finished.endpoint, finished.profile, finished.pass_no, scores, name)
    return scores


async def _score_texts(
    reference: Opened,
    passes: Mapping[tuple[str, str, int], Sequence[Record]],
    writer: RunWriter,
    progress: Progress,
    world: World,
) -> None:
    """Where a server returned text alone, all servers' replies of those passes once more, by their text."""
    from loadgen import retokenized

    for key, scored in (await retokenized.score(reference, passes, throttle() if world.throttled else None)).items():
        writer.scores(*key, scored.scores, by_text=True)
        say_left_out(progress, f"{key[1]} pass {key[2] + 1} {key[0]}: by its text", scored)


async def _scores(
    reference: Opened, title: str, records: Sequence[Record], progress: Progress, world: World
) -> "Scores":
    progress.start(title, len(records), 0)
    limit = throttle() if world.throttled else None
    scored: ScoredPass = await score_pass(reference, records, limit, progress.counted)
    say_left_out(progress, title, scored)
    return scored.scores


def _gathering(session: Session) -> "Gathering | None":
    """What keeps the probes' material; None where no probes are asked for."""
    if not session.probes or not session.scored:  # without the records nothing can be made of them
        return None
    from loadgen.probe import Gathering

    return Gathering(session.load.profiles, session.endpoints[0].label, session.load.seed)


@dataclass(frozen=True, slots=True)
class _Ways:
    sides: Sequence[Opened]
    reference: Opened | None
    crew: Crew
    writer: RunWriter


async def _probe(session: Session, gathered: "Gathering", ways: _Ways, world: World, progress: Progress) -> None:
    from loadgen import probe

    async def score(title: str, records: Sequence[Record]) -> "Scores":
        assert ways.reference is not None, "probes are scored by a reference that can"
        return await _scores(ways.reference, title, records, progress, world)

    def keep(label: str, name: Probe, scores: "Scores") -> None:
        ways.writer.scores(label, name, 0, scores)

    by = probe.Probing(
        sides=ways.sides,
        reference=ways.reference,
        crew=ways.crew,
        clock=world.clock,
        shown=progress,
        write=ways.writer.record,
        score=score,
        keep=keep,
    )
    if (material := gathered.material) is not None:
        await probe.drive(session.probes, material, by)


def say_how_it_scores(progress: Progress, reference: Opened) -> None:
    if reference.by_next_token:
        progress.say(
            f"warning: {reference.endpoint.label} tells log-probabilities of what it samples alone, so that each place "
            f"of a reply is a request: a random {next_token.SHARE:.0%} of the timed tokens are scored."
        )


def say_left_out(progress: Progress, title: str, scored: ScoredPass) -> None:
    """The commonest reasons; a server's own words may differ for every reply."""
    reasons = sorted(scored.left_out.items(), key=lambda item: -item[1])
    for reason, replies in reasons[:_MOST_REASONS]:
        progress.say(f"warning: {title}: {replies} replies left out: {reason}")
    if rest := sum(replies for _, replies in reasons[_MOST_REASONS:]):
        progress.say(f"warning: {title}: {rest} more replies left out for other reasons")


def _say_differences(session: Session, told: Sequence[Mapping[Setting, str]], progress: Progress) -> None:
    """Before anything is driven, when it can still be mended."""
    if session.roles is not None:
        from gates import fairness

        for sentence in fairness.differences(*told):
            progress.say(f"warning: {sentence}")


def _asked(
    session: Session, sides: Sequence[Opened], reference: Opened | None, told: Sequence[Mapping[Setting, str]]
) -> dict[str, Any]:
    """What run.json says, without secrets."""
    profiles = {
        profile.name: {"digest": profile.digest(), **profile.model_dump(mode="json")}
        for profile in session.load.profiles
    }
    return {
        "command": session.command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": version("loadgate"),
        "host": host_facts(),
        "seed": session.load.seed,
        "plan": session.plan,
        "passes": session.load.passes,
        "order": "abba" if len(sides) == 2 else "single",
        "profiles": profiles,
        "endpoints": {
            side.endpoint.label: described(side) | {"settings": settings}
            for side, settings in zip(sides, told, strict=True)
        },
        "roles": session.roles,
        "drivers": asdict(session.drivers),
        "probes": list(session.probes),
        "reference": None if reference is None else described_reference(reference),
        "submission": session.submission,
        **session.extra,
    }


def default_out(command: str) -> Path:
    return Path("runs") / f"{datetime.datetime.now().strftime('%Y-%m-%d-%H%M%S')}-{command}"
