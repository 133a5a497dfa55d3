"""loadgate serve: a server from a recipe, in the foreground."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from servers import launch
from servers.recipes import Command

_REPORT_EVERY_S = 5.0


@click.command(name="serve", epilog="Example: loadgate serve vllm --set model=Qwen/Qwen3-8B --port 8000")
@click.argument("recipe")
@click.option("--port", type=click.IntRange(1, 65535), help="Where it listens on 127.0.0.1; a free port otherwise.")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="A setting of the recipe; repeatable.")
@click.option("--print", "print_only", is_flag=True, help="Only show the command and its environment.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Its log; a temporary file otherwise.")
@click.option("--json", "as_json", is_flag=True, help="The result as one line of JSON.")
def command(
    recipe: str, port: int | None, assignments: tuple[str, ...], print_only: bool, log: Path | None, as_json: bool
) -> None:
    """Start a server from RECIPE and keep it until Ctrl-C.

    Prints its URL once it answers. `loadgate list recipes` names the recipes; a wrong --set names the settings.
    """
    loaded = launch.load_recipe(recipe)
    settings = launch.parse_settings(loaded, assignments)
    port = launch.free_port() if port is None else port
    if print_only:
        click.echo(_shown(loaded.command(settings, port), as_json))
        return
    with suppress(KeyboardInterrupt), launch.start(loaded, settings, port, log) as server:
        click.echo(f"log: {server.log}", err=True)
        models = server.wait_healthy(progress=_reporter())
        click.echo(_answers(server, models, as_json))
        server.wait()


def _shown(command: Command, as_json: bool) -> str:
    return json.dumps({"argv": command.argv, "env": {**command.env}}) if as_json else command.shell()


def _answers(server: launch.Server, models: list[str], as_json: bool) -> str:
    if as_json:
        return json.dumps({"url": server.url, "models": models, "pid": server.pid, "log": str(server.log)})
    return f"{server.url} serves {', '.join(models)}"


def _reporter(now: Callable[[], float] = time.monotonic) -> launch.Progress:
    """Progress as a plain line on standard error every few seconds."""
    next_at = now() + _REPORT_EVERY_S

    def report(waited_s: float, last_line: str) -> None:
        nonlocal next_at
        if now() >= next_at:
            next_at = now() + _REPORT_EVERY_S
            click.echo(f"starting, {waited_s:.0f} s   {last_line[:100]}", err=True)

    return report
