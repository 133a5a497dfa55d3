"""`loadgate calibrate`: what this machine's client can hold."""

import dataclasses
from typing import TYPE_CHECKING

import click
import orjson

if TYPE_CHECKING:
    from loadgen.calibrate import Step
    from loadgen.cli.progress import Progress

_MOST_STEPS = 7


@click.command(short_help="what this machine's client can hold")
@click.option("--steps", type=click.IntRange(1, _MOST_STEPS), default=_MOST_STEPS, show_default=True, help="at most")
@click.option("--json", "as_json", is_flag=True, help="the steps as JSON")
def command(steps: int, as_json: bool) -> int:
    """Drive a built-in server that knows when it sent each chunk, with more and more lanes, until the client's own
    error passes a millisecond. Takes less than a minute; run it with nothing beside it.

    What was held is stored (in $XDG_CACHE_HOME or ~/.cache, under loadgate/), and `run` and `compare` warn beyond it.

    \b
    loadgate calibrate
    loadgate calibrate --steps 4 --json

    Exit code: 1 where not even the first step was held.
    """
    from loadgen import held
    from loadgen.calibrate import STEPS, most_held
    from loadgen.cli.interruptible import run_async
    from loadgen.cli.progress import Progress

    found = run_async(_measured(STEPS[:steps], Progress()))
    most = most_held(found)
    path = held.store(most) if most is not None else None
    if as_json:
        shown = {"steps": [dataclasses.asdict(step) | {"holds": step.holds} for step in found], "held": most}
        click.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
        return 0 if most else 1
    click.echo(_table(found))
    if most is None:
        click.echo("Not even the first step was held: is something else running on this machine? Nothing is stored.")
        return 1
    if not found[-1].holds and found[-1].server_fell_behind:
        click.echo(f"With {found[-1].lanes:,} lanes the built-in server itself fell behind: the client may hold more.")
    click.echo(f"One client process holds {most.lanes:,} lanes and {most.chunks_per_s:,.0f} chunks/s here.")
    click.echo(f"stored: {path}")
    return 0


async def _measured(lanes: "tuple[int, ...]", progress: "Progress") -> "list[Step]":
    from loadgen.calibrate import steps

    found: list[Step] = []
    progress.start(f"{lanes[0]:,} lanes", 0, 0)
    async for step in steps(lanes, progress):
        found.append(step)
        more = lanes[len(found) : len(found) + 1]
        progress.start(f"{more[0]:,} lanes" if more else "done", 0, 0)
    progress.clear()
    return found


def _table(found: "list[Step]") -> str:
    lines = ["lanes   chunks/s   stamp error p50 / p99   TTFT error p99   server late p99   held"]
    for step in found:
        errors = f"{step.chunk_error_p50_ms:.3f} / {step.chunk_error_p99_ms:.3f} ms"
        ttft = f"{step.ttft_error_p99_ms:.3f} ms"
        late = "–" if step.server_late_p99_ms is None else f"{step.server_late_p99_ms:.1f} ms"
        held = "yes" if step.holds else "no"
        lines.append(f"{step.lanes:>5,}{step.chunks_per_s:>11,.0f}{errors:>24}{ttft:>17}{late:>18}   {held}")
    return "\n".join(lines)
