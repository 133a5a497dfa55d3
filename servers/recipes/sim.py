"""The embedded engine without speculation: an exact small language model; needs nothing but this package."""

import sys
from typing import Literal

from pydantic import Field

from servers.recipes import Command
from servers.sim.settings import Settings as Engine

ABOUT = "embedded engine: an exact small model, no GPU, no weights"


class Settings(Engine):
    api_key: None = Field(None, description="not here: an argument would be seen in the list of processes")
    speculative: Literal[0] = Field(0, description="0: see recipe sim-spec")


def command(settings: Engine, port: int) -> Command:
    argv = [sys.executable, "-m", "servers.sim", "--port", str(port)]
    for name in sorted(settings.model_fields_set - {"api_key"}):
        argv += [f"--{name.replace('_', '-')}", str(getattr(settings, name))]
    return Command(argv)
