"""`loadgate run`: one endpoint, its latency and throughput."""

from pathlib import Path
from typing import Any

import click

from loadgen.cli import options


@click.command(short_help="load one endpoint; latency and throughput")
@click.argument("endpoint", metavar="ENDPOINT")
@click.option("--profile", "profile_names", multiple=True, default=("solo",), show_default=True, metavar="NAME|PATH")
@click.option(
    "--passes", type=click.IntRange(1, options.MOST), default=1, show_default=True, help="passes of each profile"
)
@click.option("--out", type=click.Path(path_type=Path), metavar="RUN", help="run directory  [default: runs/DATE-run]")
@click.option("--json", "as_json", is_flag=True, help="the summary as JSON")
@options.load_options
@options.driver_options
@options.endpoint_options()
def command(endpoint: str, profile_names: tuple[str, ...], out: Path | None, as_json: bool, **given: Any) -> int:
    """Drive one ENDPOINT (a URL, an endpoint's TOML file, or recipe:NAME) and sum up what was seen.

    Nothing is scored: latencies, rates and failures only. The run directory holds every request.

    \b
    loadgate run http://gpu:8000 --profile solo --profile team --out runs/first
    loadgate run https://api.example.com/v1 --api-key-env KEY --model NAME --lanes 4 --requests 40
    """
    from loadgen.cli import engines, judging, session
    from loadgen.cli.progress import Progress
    from loadgen.compare import Load

    profiles = options.profiles_from(profile_names, given)
    progress = Progress()
    out = out or session.default_out("run")
    judging.refuse_existing(out)
    drivers = session.drivers_from(given, progress)
    with engines.endpoint(endpoint, None, given, progress) as described:
        asked = session.Session(
            command="run",
            endpoints=(described,),
            load=Load(profiles, given["passes"], given["seed"], session.held_by(drivers), scored=False),
            out=out,
            scored=False,
            drivers=drivers,
        )
        return judging.driven(asked, progress, lambda: judging.show_summary(out, as_json))
