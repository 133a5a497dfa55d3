"""The embedded engine without speculation: a small exact language model, no GPU and no weights needed."""

import sys

from pydantic import field_validator

from servers.recipes import Command
from servers.sim import settings as engine

ABOUT = "the embedded engine, without speculation"
NEEDS = "nothing"


class Settings(engine.Settings):
    @field_validator("api_key")
    @classmethod
    def _no_key_in_sight(cls, key: str | None) -> str | None:
        if key is not None:
            raise ValueError("a key given here would be seen in the list of processes and in the log")
        return key


def command(settings: Settings, port: int) -> Command:
    """Flags only for what differs from the engine's own defaults."""
    argv = [sys.executable, "-m", "servers.sim", "--port", str(port)]
    for name, field in engine.Settings.model_fields.items():
        value = getattr(settings, name)
        if value != field.default:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return Command(argv)
