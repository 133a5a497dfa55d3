"""`loadgate report`: a run shown again."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.record import Broken, Run

if TYPE_CHECKING:
    from gates.report import Report

# Named here, and held against gates.report.names() by a test: --help must not load the formats.
FORMATS = ("text", "markdown", "json")


@click.command(short_help="show a run again: text, markdown or json")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--format", "format_", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="the same as --format json")
def command(run: Path, format_: str, as_json: bool) -> int:
    """Show a RUN on standard output: its verdict where it compares two endpoints, else its latency and throughput.

    The verdict is RUN's own (verdict.json) while it fits the files; else the run is judged again, by the same plan.
    Nothing is written.

    \b
    loadgate report runs/first
    loadgate report runs/first --format markdown > first.md
    """
    from gates import report

    click.echo(report.load("json" if as_json else format_)(_report(run)))
    return 0


def _report(path: Path) -> "Report":
    from gates import digests, report
    from loadgen.cli import judging

    runs = _runs(path)
    if len(runs) == 1 and not runs[0].asked.get("roles"):
        return report.shown(runs, None)
    if not (path / "verdict.json").exists():
        return report.judged(runs)
    verdict = judging.read_verdict(path)
    if verdict.inputs != digests.of(runs):
        return report.judged(runs, verdict.plan)
    return report.as_judged(runs, verdict)


def _runs(path: Path) -> list[Run]:
    """The run itself; for the verdict on two runs, those two."""
    import orjson

    pair = path / "runs.json"
    if not pair.exists():
        return [Run.open(path)]
    try:
        stock, candidate = orjson.loads(pair.read_bytes())["runs"]
        places = [Path(stock), Path(candidate)]
    except (ValueError, KeyError, TypeError) as error:
        raise Broken(f"{pair} does not name two runs. Judge them again: `loadgate judge A B --out RUN`.") from error
    return [Run.open(place) for place in places]
