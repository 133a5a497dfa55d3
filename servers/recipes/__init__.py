"""One file an engine set-up; the file's name is its key, with a dash for each underscore and a dot for two.

A recipe is a module with four names: ABOUT and NEEDS (one line each for a person), Settings (a frozen pydantic model
that refuses unknown keys) and command(settings, port).
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator

Flags = Annotated[list[str], BeforeValidator(lambda text: shlex.split(text) if isinstance(text, str) else text)]
"""More flags of an engine, as in a shell."""


@dataclass(frozen=True, slots=True)
class Command:
    """What starts a server: its arguments and what it needs in the environment beyond ours.

    secrets maps a variable of the server's environment to the variable of ours that it is copied from, so that no
    key is ever printed, logged or seen in a list of processes.
    """

    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)

    def shell(self) -> str:
        """The same as one line for a POSIX shell."""
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        secrets = [f'{name}="${source}"' for name, source in self.secrets.items()]
        return " ".join([*env, *secrets, shlex.join(self.argv)])


class Recipe(Protocol):
    """Satisfied by a module of this package."""

    ABOUT: str
    NEEDS: str
    Settings: type[BaseModel]

    def command(self, settings: Any, port: int) -> Command: ...


def key(module: str) -> str:
    return module.replace("__", ".").replace("_", "-")


def module(key: str) -> str:
    return key.replace("-", "_").replace(".", "__")
