"""Endpoints given as recipe:NAME[,key=value …]: started before the run, stopped after it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from loadgen.cli.options import endpoint_from
from loadgen.cli.progress import Progress
from loadgen.endpoint import Endpoint

_PREFIX = "recipe:"


@contextmanager
def endpoint(
    text: str, label: str | None, given: Mapping[str, Any], progress: Progress, prefix: str = ""
) -> Iterator[Endpoint]:
    """The endpoint of a URL, a TOML file or a recipe; a recipe's server lives as long as the block.

    Raises EndpointConfigError, RecipeError, LaunchFailed.
    """
    if not text.startswith(_PREFIX):
        yield endpoint_from(text, label, given, prefix)
        return
    from servers import launch

    name, *assignments = text.removeprefix(_PREFIX).split(",")
    recipe = launch.load_recipe(name)
    settings = launch.parse_settings(recipe, assignments)
    progress.start(f"starting {name}", 0, 0)
    with launch.start(recipe, settings) as server:
        server.wait_healthy(progress=lambda seconds, state: progress.waiting(f"{name}: {state}", seconds))
        yield endpoint_from(server.url, label, given, prefix)
