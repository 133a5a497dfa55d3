"""Scores of a run that was driven before."""

from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import click
import orjson

from loadgen.cli.progress import Progress
from loadgen.cli.session import World, described, say_left_out
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint, EndpointError
from loadgen.record import Broken, Record, Run
from loadgen.record.writer import write_json, write_scores
from loadgen.score import CannotScore, check_reference, score_pass, throttle

Key = tuple[str, str, int]


def unscored(run: Run) -> dict[Key, list[Record]]:
    """Records by (endpoint, profile, pass) for every timed pass that has no scores yet, and by (endpoint, probe, 0)."""
    there = {(endpoint, profile, pass_no) for endpoint, profile, pass_no, _ in run.scores()}
    passes: dict[Key, list[Record]] = defaultdict(list)
    for record in run.records():
        key = (record.endpoint, record.probe or record.profile, record.pass_no)
        if record.phase in ("timed", "probe") and key not in there:
            passes[key].append(record)
    return {key: _worth_scoring(key[1], records) for key, records in passes.items()}


def _worth_scoring(name: str, records: list[Record]) -> list[Record]:
    from loadgen.probes import repeat_prefix

    return repeat_prefix.to_score(records) if name == "repeat_prefix" else records


async def score_run(path: Path, endpoint: Endpoint, world: World, progress: Progress) -> dict[str, int]:
    """Scores what has no scores. Returns pass → tokens. Raises Broken, EndpointError, ReferenceDied."""
    run = Run.open(path)
    passes = unscored(run)
    done: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        timed = world.timed(endpoint)
        stack.push_async_callback(timed.aclose)
        reference = await open_endpoint(endpoint, timed, world.side(endpoint))
        stack.push_async_callback(reference.close)
        try:
            await check_reference(reference)
        except CannotScore as error:
            raise EndpointError(str(error)) from error
        if passes:
            _same_reference(run, described(reference))
        for (label, profile, pass_no), records in passes.items():
            title = f"{profile} pass {pass_no + 1} {label}"
            progress.start(f"{title}: scoring", len(records), 0)
            scored = await score_pass(reference, records, throttle() if world.throttled else None, progress.counted)
            write_scores(path, label, profile, pass_no, scored.scores)
            done[f"{label}-{profile}-{pass_no}"] = len(scored.scores)
            say_left_out(progress, title, scored)
    progress.clear()
    return done


def _same_reference(run: Run, reference: dict[str, object]) -> None:
    """Keeps beside the scores whose they are, and refuses to mix two models' scores in one run. Raises Broken."""
    folder, before = run.path / "scores", run.reference_model
    if before not in (None, reference["model"]) and any(folder.glob("[!.]*.npy")):
        raise Broken(
            f"{run.path} holds scores of {before}; this reference serves {reference['model']}. "
            f"Scores of two models cannot be judged together: remove {folder} to score anew."
        )
    folder.mkdir(exist_ok=True)
    write_json(folder / "reference.json", reference)


def show(scored: dict[str, int], as_json: bool) -> None:
    if as_json:
        click.echo(orjson.dumps({"scored": scored}, option=orjson.OPT_INDENT_2).decode())
    elif scored:
        for name, tokens in scored.items():
            click.echo(f"{name:<40} {tokens:>9,} tokens")
    else:
        click.echo("Nothing was left to score: every timed pass has its scores.")
