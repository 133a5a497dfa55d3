"""`loadgate compare`: two endpoints in turn, their replies scored, the verdict."""

from pathlib import Path
from typing import Any

import click

from loadgen.cli import options

_PASSES, _MOST_UNDECIDED = 3, 20


@click.command(short_help="load two endpoints in turn; verdict and speedup")
@click.argument("stock", metavar="STOCK")
@click.argument("candidate", metavar="CANDIDATE")
@click.option(
    "--profile",
    "profile_names",
    multiple=True,
    default=("solo", "team", "busy"),
    show_default=True,
    metavar="NAME|PATH",
    help="may be repeated",
)
@click.option(
    "--passes",
    type=click.IntRange(1, options.MOST),
    help="passes of each profile; with --until-decided at most so many  [default: 3; 20 with --until-decided]",
)
@click.option("--until-decided", is_flag=True, help="stop once the verdict is in; where that is DIFFERENT, no probes")
@click.option("--plan", "plan_name", default="strict", show_default=True, metavar="NAME|PATH", help="what decides")
@click.option("--without", multiple=True, metavar="CHECK", help="leave a check out; the verdict says so")
@click.option("--reference", metavar="ENDPOINT", help="server that scores the replies  [default: STOCK]")
@click.option(
    "--oracle",
    "oracles",
    multiple=True,
    metavar="ENDPOINT",
    help="a likely wrong model, such as the draft, scores too: shows whether tokens are its; may be repeated",
)
@click.option("--submission", type=click.Path(path_type=Path), metavar="FILE.toml", help="what a contest's page names")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="RUN", help="run directory  [default: runs/DATE-compare]"
)
@click.option("--json", "as_json", is_flag=True, help="the verdict as JSON")
@options.load_options
@options.driver_options
@options.endpoint_options("stock", "candidate")
def command(
    stock: str, candidate: str, profile_names: tuple[str, ...], out: Path | None, as_json: bool, **given: Any
) -> int:
    """Is CANDIDATE still the same model as STOCK, and how much faster is it?

    Each is a URL, an endpoint's TOML file, or recipe:NAME. Both are driven with the same fresh prompts, pass by pass
    in turn; the reference scores every reply of both. Where the plan asks for probes, they follow. Every endpoint
    option below may also be given for one side only, as --stock-… or --candidate-….

    \b
    loadgate compare http://gpu:8000 http://gpu:8001 --out runs/first
    loadgate compare http://gpu:8000 http://gpu:8000 --profile team --candidate-extra-body '{"temperature": 0.95}'
    loadgate compare http://gpu:8000 http://gpu:8001 --until-decided
    loadgate compare http://gpu:8000 http://gpu:8001 --oracle http://gpu:8002

    Exit code: 0 equivalent, 1 different, 3 undecided, 4 a server or the run broke off.
    """
    from contextlib import ExitStack

    from loadgen.cli import engines, judging, session
    from loadgen.cli.progress import Progress
    from loadgen.compare import Load

    profiles = options.profiles_from(profile_names, given)
    judging.check_plan(given["plan_name"], given["without"])
    decided = judging.decided_by(given["plan_name"], given["without"]) if given["until_decided"] else None
    passes = given["passes"] or (_MOST_UNDECIDED if decided else _PASSES)
    submission = judging.submission_from(given["submission"])
    progress = Progress()
    out = out or session.default_out("compare")
    judging.refuse_existing(out)
    probes = judging.probes_of(given["plan_name"], given["without"])
    judging.check_probes(probes, profiles)
    drivers = session.drivers_from(given, progress)
    with ExitStack() as stack:
        sides = tuple(
            stack.enter_context(engines.endpoint(text, label, given, progress, label))
            for text, label in ((stock, "stock"), (candidate, "candidate"))
        )
        options.refuse_shared_secrets(given, *sides)
        reference = given["reference"]
        asked = session.Session(
            command="compare",
            endpoints=sides,
            load=Load(profiles, passes, given["seed"], session.held_by(drivers)),
            out=out,
            roles={"stock": "stock", "candidate": "candidate"},
            reference=stack.enter_context(engines.endpoint(reference, "reference", {}, progress))
            if reference
            else None,
            oracles=tuple(stack.enter_context(engines.endpoint(text, None, {}, progress)) for text in given["oracles"]),
            plan=given["plan_name"],
            submission=submission,
            drivers=drivers,
            decided=decided,
            probes=probes,
            extra={"until_decided": True} if decided else {},
        )
        shown = judging.JudgeOptions(given["plan_name"], given["without"], "json" if as_json else "text")
        return judging.driven(asked, progress, lambda: judging.judge_and_show(out, shown))
