"""`loadgate selftest`: the gates' own error rates."""

import os
from typing import TYPE_CHECKING, Any

import click
import orjson

from loadgen.cli.streams import ALPHA, Streams

if TYPE_CHECKING:
    from loadgen.cli.planted import Compared
    from loadgen.cli.progress import Progress

_LOSSLESS = "none"


@click.command(short_help="the gates' own error rates")
@click.option("--fault", metavar="F", help="this fault alone, such as temperature-0.95")
@click.option(
    "--streams",
    type=click.IntRange(20, 100_000),
    default=1000,
    show_default=True,
    help="lossless ones of each kind; --engine draws none",
)
@click.option("--engine", is_flag=True, help="whole comparisons of embedded engines instead, under a clock that jumps")
@click.option("--json", "as_json", is_flag=True, help="the rates as JSON")
def command(fault: str | None, streams: int, engine: bool, as_json: bool) -> int:
    """Draw tokens from servers whose faults are known, and judge them by the code that judges runs.

    Says how often a lossless server would be called different, how many tokens it takes to call it equivalent, and how
    many to find each fault: timed tokens, repeated draws at chosen prefixes, pairs of replies, replies with
    log-probabilities. No server is started. 1,000 streams take about four minutes on two cores; --streams 10000 gives
    the rates that the README states.

    \b
    loadgate selftest
    loadgate selftest --fault top-p-0.98
    loadgate selftest --streams 10000 --json
    loadgate selftest --engine
    loadgate selftest --engine --fault late

    --engine plants faults in the embedded engine, loads it as `loadgate compare` does, scores and judges: prompts to
    verdict, a few seconds each.

    Exit code: 1 where a figure is not what it may be (each is listed with its bound); with --engine, where a lossless
    engine is called different or a planted fault stays unseen.
    """
    from loadgen.cli.progress import Progress

    progress = Progress()
    if engine:
        return _engines(_planted(fault), progress, as_json)
    wanted = _of_streams(fault)
    return _streams(Streams(streams, max(1, os.cpu_count() or 1), progress), wanted, fault is None, as_json)


def _of_streams(fault: str | None) -> list[str]:
    from gates.selftest import faults
    from loadgen.record import nearest

    if fault is None:
        return [*faults.LAWS, *faults.BETWEEN_REPLIES]
    if fault in faults.LAWS or fault in faults.BETWEEN_REPLIES:
        return [fault]
    if fault in faults.NAMES:
        raise click.UsageError(
            f"No token shows fault {fault!r}, so that no stream of tokens finds it: "
            f"`loadgate selftest --engine --fault {fault}` plants it in the embedded engine."
        )
    raise click.UsageError(f"There is no fault {fault!r}. {nearest(fault, list(faults.NAMES))}")


def _streams(made: "Streams", wanted: list[str], whole: bool, as_json: bool) -> int:
    """whole: error rates too, not a fault alone."""
    from loadgen.cli import streams_page

    lossless, probes = (made.lossless(), made.probes()) if whole else ({}, {})
    found = {name: made.fault(name) for name in wanted}
    holds = all(bound.holds for bound in made.bounds)
    made.done()
    if as_json:
        judged = {"bounds": [bound.as_json() for bound in made.bounds], "holds": holds}
        said = {"alpha": ALPHA, **lossless, **probes, **judged, "faults": found | (_absent() if whole else {})}
        click.echo(orjson.dumps(said, option=orjson.OPT_INDENT_2).decode())
    else:
        parts = [streams_page.lossless(lossless), streams_page.probes(probes)] if whole else []
        parts += [streams_page.of_faults(found), streams_page.of_bounds(made.bounds)]
        click.echo("\n".join(line for part in parts for line in part))
    return 0 if holds else 1


def _absent() -> dict[str, None]:
    """No token shows these: null."""
    from gates.selftest import faults

    return dict.fromkeys(faults.NO_STATISTIC)


# Whole comparisons of embedded engines.


def _planted(fault: str | None) -> list[str | None]:
    """The lossless engine first: what is said of it, a fault must be told from."""
    from loadgen.cli import planted
    from loadgen.record import nearest
    from servers.sim.faults import NAMES

    if fault not in (None, _LOSSLESS, *NAMES):
        raise click.UsageError(f"The embedded engine has no fault {fault!r}. {nearest(str(fault), list(NAMES))}")
    if fault is None:
        return [None, *(name for name in planted.FEW if name in NAMES)]
    return [None] if fault == _LOSSLESS else [None, fault]


def _engines(faults: list[str | None], progress: "Progress", as_json: bool) -> int:
    from loadgen.cli import planted

    progress.start("embedded engines", len(faults), 0)
    found: dict[str, Compared] = {}
    for fault, one in planted.spread(faults, 1, planted.TOKENS, max(1, os.cpu_count() or 1)):
        found[fault or _LOSSLESS] = one
        progress.counted(len(found), len(faults))
    progress.clear()
    as_wanted = {name: _as_wanted(name, one, found[_LOSSLESS]) for name, one in found.items()}
    if as_json:
        said = {name: _engine_json(one, as_wanted[name]) for name, one in found.items()}
        click.echo(orjson.dumps({"engine": said}, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join(_engine_lines(found, as_wanted)))
    return 0 if all(as_wanted.values()) else 1


def _as_wanted(name: str, one: "Compared", lossless: "Compared") -> bool:
    """Lossless: not different. A fault: different, or, where no token shows it, warned of."""
    from gates.selftest import faults

    if name == _LOSSLESS:
        return one.outcome != "different"
    return one.outcome == "different" or (name in faults.NO_STATISTIC and bool(_new(one, lossless)))


def _new(one: "Compared", lossless: "Compared") -> list[str]:
    return [warning for warning in one.warnings if warning not in lossless.warnings]


def _engine_json(one: "Compared", as_wanted: bool) -> dict[str, Any]:
    return {
        "outcome": one.outcome,
        "tokens": one.tokens,
        "diagnosis": one.diagnosis,
        "checks": one.checks,
        "warnings": one.warnings,
        "as_wanted": as_wanted,
    }


def _engine_lines(found: "dict[str, Compared]", as_wanted: dict[str, bool]) -> list[str]:
    lines = [f"{'planted':<18}{'verdict':<12}{'tokens':>8}  what says so"]
    for name, one in found.items():
        said = "; ".join([*one.checks, *([] if one.diagnosis is None else [one.diagnosis])])
        if not said and name != _LOSSLESS:
            said = " ".join(_new(one, found[_LOSSLESS]))
        unseen = "" if as_wanted[name] else ("wrongly called different: " if name == _LOSSLESS else "not seen  ")
        lines.append(f"{name:<18}{one.outcome.upper():<12}{one.tokens:>8,}  {unseen}{said}".rstrip())
    return lines
