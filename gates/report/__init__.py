"""Reports: one file a format, the file's name is its key. A format's module has `render(report) -> str`."""

import importlib
import pkgutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gates.contest_rules import Record, Submission
from gates.finding import Verdict
from gates.latency import Summary
from loadgen.record import Run


@dataclass(frozen=True, slots=True)
class Report:
    """What is shown of a run. Texts in it may be a server's: whoever renders them makes them harmless."""

    run: Run
    summary: Summary
    verdict: Verdict | None = None  # None for a run of one endpoint
    contest: Record | None = None  # of plan contest only
    asked: dict[str, Any] | None = None  # None: as the run's run.json has it

    @property
    def facts(self) -> dict[str, Any]:
        """What was asked, and what the endpoints said of themselves."""
        return self.run.asked if self.asked is None else self.asked

    @property
    def submission(self) -> Submission | None:
        found = self.facts.get("submission")
        return None if found is None else Submission.model_validate(found)


def names() -> list[str]:
    """The formats there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load(format: str) -> Callable[[Report], str]:
    """The format's render, whose text does not end in a line break.

    Raises ModuleNotFoundError where there is no such format: ask names() first.
    """
    render: Callable[[Report], str] = importlib.import_module(f"{__name__}.{format}").render
    return render


def judged(
    runs: Sequence[Run],
    plan_name: str | None = None,
    without: Collection[str] = (),
    submission: dict[str, Any] | None = None,
) -> Report:
    """Judges a comparison, or two runs (stock's, candidate's), by a plan; None: the run's own, else strict.

    Raises PlanError, gates.evidence.NotComparable, loadgen.record.Broken.
    """
    from gates import contest, plan, reading, verdict

    chosen = plan.load(plan_name or runs[0].asked.get("plan") or "strict")
    found = reading.load(*runs)
    if chosen.contest is None:
        return shown(runs, verdict.judge(found, chosen, without), None, submission)
    chosen.without(frozenset(without))  # a contest leaves nothing out
    return shown(runs, contest.judge(found, chosen), contest.record(found, chosen), submission)


def as_judged(runs: Sequence[Run], verdict: Verdict) -> Report:
    """A report on a verdict that is there already. A contest's record is made again: verdict.json holds none."""
    from gates import contest, plan, reading

    try:
        chosen = plan.load(verdict.plan)
    except plan.PlanError:  # judged by a file that is not here
        return shown(runs, verdict)
    return shown(runs, verdict, contest.record(reading.load(*runs), chosen) if chosen.contest is not None else None)


def shown(
    runs: Sequence[Run],
    verdict: Verdict | None,
    contest: Record | None = None,
    submission: dict[str, Any] | None = None,
) -> Report:
    """A report on what has been judged. submission goes before the run's own."""
    from gates import latency

    asked = _compared(*runs) if len(runs) > 1 else runs[0].asked
    if submission is not None:
        asked = {**asked, "submission": submission}
    summary = latency.summarise_two(*runs) if len(runs) > 1 else latency.summarise(runs[0])
    return Report(run=runs[0], summary=summary, verdict=verdict, contest=contest, asked=asked)


def _compared(stock: Run, candidate: Run) -> dict[str, Any]:
    """Two runs of one endpoint each, as a comparison would have asked for them."""
    sides = {"stock": stock, "candidate": candidate}
    return {
        **stock.asked,
        "profiles": {**candidate.asked.get("profiles", {}), **stock.asked.get("profiles", {})},
        "endpoints": {role: next(iter(run.asked["endpoints"].values())) for role, run in sides.items()},
        "roles": {role: role for role in sides},
    }
