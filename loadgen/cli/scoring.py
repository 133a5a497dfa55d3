"""Scores of a run that was driven before."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click
import orjson

from loadgen import retokenized
from loadgen.cli.described import described, described_reference
from loadgen.cli.progress import Progress
from loadgen.cli.session import World, say_how_it_scores, say_left_out
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint, EndpointError, Opened
from loadgen.oracle import checked
from loadgen.record import Broken, Record, Run
from loadgen.record.writer import write_json, write_oracle, write_scores
from loadgen.score import CannotScore, check_reference, score_pass, throttle

Key = tuple[str, str, int]


def unscored(run: Run, oracle: str | None = None) -> dict[Key, list[Record]]:
    """Records by (endpoint, profile, pass) for every timed pass that has no scores yet, and by (endpoint, probe, 0).

    oracle: whose scores are wanted, of timed passes alone; None: the reference's.
    """
    there = {(endpoint, profile, pass_no) for endpoint, profile, pass_no, _ in run.scores(oracle)}
    phases = ("timed", "probe") if oracle is None else ("timed",)
    passes: dict[Key, list[Record]] = defaultdict(list)
    for record in run.records():
        key = (record.endpoint, record.probe or record.profile, record.pass_no)
        if record.phase in phases and key not in there:
            passes[key].append(record)
    return {key: _worth_scoring(key[1], records) for key, records in passes.items()}


def _worth_scoring(name: str, records: list[Record]) -> list[Record]:
    from loadgen.probes import repeat_prefix

    return repeat_prefix.to_score(records) if name == "repeat_prefix" else records


async def score_run(
    path: Path, endpoint: Endpoint, world: World, progress: Progress, oracles: Sequence[Endpoint] = ()
) -> dict[str, int]:
    """Scores what has no scores, by the reference and by each oracle. Returns file of scores → tokens.

    Raises Broken, EndpointError, EndpointConfigError, ReferenceDied.
    """
    run = Run.open(path)
    async with AsyncExitStack() as stack:
        reference = await _opened(endpoint, world, stack)
        try:
            reference = await check_reference(reference)
        except CannotScore as error:
            raise EndpointError(str(error)) from error
        say_how_it_scores(progress, reference)
        beside = await checked(reference, [await _opened(one, world, stack) for one in oracles])
        for oracle in beside:
            _same_oracle(run, oracle.name, described(oracle.opened))
        passes = unscored(run)
        if passes:
            _same_reference(run, described_reference(reference))
        done = await _score(run, reference, passes, world, progress)
        await _score_texts(run, reference, world, progress)
        for oracle in beside:
            write_oracle(path, oracle.name, described(oracle.opened))
            done |= await _score(run, oracle.opened, unscored(run, oracle.name), world, progress, oracle.name)
    progress.clear()
    return done


async def _opened(endpoint: Endpoint, world: World, stack: AsyncExitStack) -> Opened:
    timed = world.timed(endpoint)
    stack.push_async_callback(timed.aclose)
    opened = await open_endpoint(endpoint, timed, world.side(endpoint))
    stack.push_async_callback(opened.close)
    return opened


async def _score(
    run: Run, by: Opened, passes: dict[Key, list[Record]], world: World, progress: Progress, oracle: str | None = None
) -> dict[str, int]:
    done: dict[str, int] = {}
    for (label, profile, pass_no), records in passes.items():
        title = f"{profile} pass {pass_no + 1} {label}" + (f" by {oracle}" if oracle else "")
        progress.start(f"{title}: scoring", len(records), 0)
        scored = await score_pass(by, records, throttle() if world.throttled else None, progress.counted)
        write_scores(run.path, (label, profile, pass_no), scored.scores, oracle)
        tokens = int((scored.scores["ids"][:, 0] >= 0).sum())  # others of a reply were not asked about, or refused
        done[f"{f'oracle-{oracle}/' if oracle else ''}{label}-{profile}-{pass_no}"] = tokens
        say_left_out(progress, title, scored)
    return done


def _same_oracle(run: Run, name: str, oracle: dict[str, object]) -> None:
    """Raises Broken."""
    before = run.oracles().get(name)
    if before not in (None, oracle["model"]):
        raise Broken(
            f"{run.path} holds scores of {before} under the name {name}; this oracle serves {oracle['model']}. "
            f"Give it another label in a TOML file, or remove {run.path / 'scores' / f'oracle-{name}'} to score anew."
        )


async def _score_texts(run: Run, reference: Opened, world: World, progress: Progress) -> None:
    """Passes in which a server of the run returned text alone, by the text of all its servers' replies."""
    there = {(endpoint, profile, pass_no) for endpoint, profile, pass_no, _ in run.scores(by_text=True)}
    passes: dict[Key, list[Record]] = defaultdict(list)
    for record in run.records():
        if record.phase == "timed":
            passes[record.endpoint, record.profile, record.pass_no].append(record)
    wanted = retokenized.affected(passes)
    if not wanted.keys() <= there:
        scored = await retokenized.score(reference, wanted, throttle() if world.throttled else None)
        for key, one in scored.items():
            write_scores(run.path, key, one.scores, by_text=True)
            say_left_out(progress, f"{key[1]} pass {key[2] + 1} {key[0]}: by its text", one)


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
