"""What follows the driving: from the files to a verdict, from the verdict to the terminal and the exit code."""

import contextlib
import ctypes
import gc
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from loadgen.record import Broken, Run, RunExists
from loadgen.record.writer import write_json

if TYPE_CHECKING:
    from gates.finding import Verdict
    from loadgen.cli.progress import Progress
    from loadgen.cli.session import Decision, Session
    from loadgen.profile import Profile
    from loadgen.record import Probe

EXIT_CODES = {"equivalent": 0, "passed": 0, "different": 1, "failed": 1, "undecided": 3}
INCOMPLETE = 4

_SETTLED = ("equivalent", "passed")
_NEED_SCORES = ("likelihood", "first_choice")  # where these have no data, more passes bring none


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """What is to be judged by, and how it is to be shown."""

    plan_name: str | None  # None: the run's own
    without: Sequence[str]
    format: str
    submission: Path | None = None


def refuse_existing(out: Path) -> None:
    """Before anything is started for it. Raises RunExists."""
    if out.exists():
        raise RunExists(
            f"{out} exists already, and a run is never overwritten. Give --out another directory, or remove it."
        )


def check_plan(name: str, without: Sequence[str]) -> None:
    """A wrong plan must not be found out after an hour of driving. Raises PlanError."""
    from gates import plan

    plan.load(name).without(frozenset(without))


def probes_of(name: str, without: Sequence[str]) -> "tuple[Probe, ...]":
    """What the plan's checks need beside the timed passes, in the records' order of probes. Raises PlanError."""
    from gates import checks, plan
    from loadgen.probes import NAMES

    chosen = plan.load(name).without(frozenset(without))
    wanted = {probe for check in (*chosen.required, *chosen.if_available) for probe in checks.probes(check)}
    return tuple(name for name in NAMES if name in wanted)


def check_probes(probes: "Sequence[Probe]", profiles: "Sequence[Profile]") -> None:
    """Before anything is started. Raises ProfileError."""
    if probes:
        from loadgen.probes import check_names

        check_names(profiles)


def submission_from(path: Path | None) -> dict[str, Any] | None:
    """Raises SubmissionError."""
    if path is None:
        return None
    from gates.contest import load_submission

    return load_submission(path).model_dump(exclude_none=True)


def driven(asked: "Session", progress: "Progress", judged: Callable[[], int]) -> int:
    """Drives, then shows; where driving broke off, what was completed is shown all the same, and the error raised."""
    from loadgen.cli.interruptible import run_async
    from loadgen.cli.session import conduct, real_world
    from loadgen.endpoint import EndpointError
    from loadgen.side import ReferenceDied
    from loadgen.workers import WorkerDied

    check_room(asked)
    try:
        run_async(conduct(asked, real_world(asked.drivers.backend), progress))
    except (EndpointError, ReferenceDied, WorkerDied):
        if asked.out.exists() and any(record.phase == "timed" for record in Run.open(asked.out).records()):
            judged()
        raise
    _give_back()
    return judged()


def decided_by(plan_name: str, without: Sequence[str]) -> "Callable[[Path], Decision]":
    """Says between two passes of a run whether its verdict is in, or cannot come for want of data.

    One may look as often as one likes: the intervals and the e-process hold at every moment, and p-values spend their
    level look by look. What is left to the probes, which come last, is not waited for, and where the candidate is
    different already, they are not even sent. Raises UsageError for a contest,
    whose rules say how many passes there are.
    """
    from gates import checks, plan, reading, verdict

    chosen = plan.load(plan_name)
    if chosen.contest is not None:
        raise click.UsageError(f"Plan {chosen.name} asks for its passes whatever they show: leave --until-decided out.")

    def decided(path: Path) -> "Decision":
        found = verdict.judge(reading.load(Run.open(path), between_passes=True), chosen, without)
        required = [one for one in found.findings if one.required]
        hopeless = any(one.missing and one.check in _NEED_SCORES for one in required)
        open_still = [one for one in required if one.outcome not in _SETTLED and not checks.probes(one.check)]
        if found.outcome == "different":
            return "different"
        if hopeless:
            return "hopeless"
        return "enough" if found.outcome != "undecided" or not open_still else "open"

    return decided


def _give_back() -> None:
    """What the driving held goes back to the system, or the judging would stand on top of it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc's own


def check_room(asked: "Session") -> None:
    """Before the first request, for the lanes that are known by then. Raises NoRoom.

    What other hosts allow is found out there.
    """
    from loadgen import headroom

    lanes = max((profile.lanes for profile in asked.load.profiles if isinstance(profile.lanes, int)), default=0)
    addresses = [endpoint.host for endpoint in asked.endpoints]
    if asked.drivers.ray is not None:
        return
    headroom.check_descriptors(math.ceil(lanes / (asked.drivers.workers or 1)) * len(addresses))
    headroom.check_ports(lanes * max(addresses.count(address) for address in addresses))


def show(text: str) -> None:
    """A result on standard output. Where its reader went away (head, less), the exit code still tells the outcome."""
    try:
        click.echo(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_summary(path: Path, as_json: bool) -> int:
    """The latency summary of a run. An endpoint that answered nothing at all is exit 4."""
    from gates import report

    run = Run.open(path)
    made = report.shown([run], verdict=None)
    show(report.load("json" if as_json else "text")(made))
    if not run.complete or not any(load.succeeded for load in made.summary.loads):
        return INCOMPLETE
    return 0


def judge_and_show(path: Path, shown: JudgeOptions, candidate: Path | None = None, out: Path | None = None) -> int:
    """Judges one run or two, writes verdict.json, prints the report; the exit code is the outcome's.

    Raises PlanError, NotComparable, Broken, RunExists.
    """
    from gates import report

    runs = [Run.open(path)] + ([Run.open(candidate)] if candidate else [])
    if out is not None:
        refuse_existing(out)
    made = report.judged(runs, shown.plan_name, shown.without, submission_from(shown.submission))
    assert made.verdict is not None
    _write(out or path, runs, made.verdict)
    show(report.load(shown.format)(made))
    return exit_code(made.verdict, runs)


def exit_code(verdict: "Verdict", runs: Sequence[Run]) -> int:
    """Incomplete runs are exit 4 whatever could be judged of them."""
    return EXIT_CODES[verdict.outcome] if all(run.complete for run in runs) else INCOMPLETE


def _write(out: Path, runs: Sequence[Run], verdict: "Verdict") -> None:
    if len(runs) > 1:
        out.mkdir(parents=True)
        write_json(out / "runs.json", {"runs": [str(run.path.resolve()) for run in runs]})
    write_json(out / "verdict.json", verdict.as_json())


def read_verdict(path: Path) -> "Verdict":
    """The verdict that a run directory holds. Raises Broken."""
    from pydantic import ValidationError

    from gates.finding import Verdict

    try:
        fields = orjson.loads((path / "verdict.json").read_bytes())
        return Verdict.model_validate({"schema_": fields.pop("schema"), **fields})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise Broken(
            f"{path}/verdict.json cannot be read ({type(error).__name__}). Try `loadgate judge {path}`."
        ) from error
