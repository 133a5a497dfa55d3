"""`loadgate judge`: a verdict from files alone."""

from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path)


@click.command(short_help="verdict from a run's files alone")
@click.argument("run", type=_PATH, metavar="RUN")
@click.argument("candidate_run", type=_PATH, metavar="[CANDIDATE_RUN]", required=False)
@click.option("--plan", "plan_name", metavar="NAME|PATH", help="what decides  [default: the run's own, else strict]")
@click.option("--without", multiple=True, metavar="CHECK", help="leave a check out; the verdict says so")
@click.option("--out", type=_PATH, metavar="RUN", help="where two runs' verdict goes; a new directory")
@click.option("--submission", type=_PATH, metavar="FILE.toml", help="what a contest's page names")
@click.option("--json", "as_json", is_flag=True, help="the verdict as JSON")
def command(run: Path, candidate_run: Path | None, out: Path | None, as_json: bool, **given: Any) -> int:
    """Judge a run of `compare` again, by the same plan or another; or two runs of `run`, stock first, then candidate.

    No server is needed. Two runs must have been scored (`loadgate score`) by the same reference. One run's verdict
    replaces its verdict.json; judging by the first plan again brings that one back.

    \b
    loadgate judge runs/first --plan contest
    loadgate judge runs/stock runs/candidate --out runs/verdict

    Exit code: 0 equivalent or passed, 1 different or failed, 3 undecided, 4 a run that is not complete.
    """
    from loadgen.cli import judging

    if (candidate_run is None) != (out is None):
        raise click.UsageError("two runs need --out RUN for their verdict, and one run keeps its own.")
    shown = judging.JudgeOptions(
        given["plan_name"], given["without"], "json" if as_json else "text", given["submission"]
    )
    return judging.judge_and_show(run, shown, candidate_run, out)
