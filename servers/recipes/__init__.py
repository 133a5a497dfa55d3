"""One file an engine set-up; the file's name, with dashes, is its key.

A recipe is a module with three names: ABOUT (one line for a person), Settings (a frozen pydantic model that refuses
unknown keys) and command(settings, port).
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel


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
    Settings: type[BaseModel]

    def command(self, settings: Any, port: int) -> Command: ...
