"""`loadgate score`: a reference server's log-probabilities for a run's replies."""

from pathlib import Path
from typing import Any

import click

from loadgen.cli import options


@click.command(short_help="score a run's replies with a reference server")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--reference", required=True, metavar="ENDPOINT", help="the stock server: URL, TOML file or recipe:NAME")
@click.option(
    "--oracle",
    "oracles",
    multiple=True,
    metavar="ENDPOINT",
    help="a likely wrong model, such as the draft: the gates then see whether tokens are its; may be repeated",
)
@click.option("--json", "as_json", is_flag=True, help="what was scored, as JSON")
@options.endpoint_options()
def command(run: Path, reference: str, oracles: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Have a reference server score every timed reply of RUN; passes that have scores already are left alone.

    \b
    loadgate score runs/candidate --reference http://gpu:8000
    loadgate score runs/candidate --reference http://gpu:8000 --oracle http://gpu:8002

    An oracle scores the same tokens by its own weights, and must have the reference's tokenizer. Endpoint options are
    the reference's; give an oracle that needs some as a TOML file.
    """
    from contextlib import ExitStack

    from loadgen.cli import engines, interruptible, scoring, session
    from loadgen.cli.progress import Progress

    progress = Progress()
    with ExitStack() as stack:
        described = stack.enter_context(engines.endpoint(reference, "reference", given, progress))
        beside = [stack.enter_context(engines.endpoint(text, None, {}, progress)) for text in oracles]
        scored = interruptible.run_async(scoring.score_run(run, described, session.real_world(), progress, beside))
    scoring.show(scored, as_json)
    return 0
