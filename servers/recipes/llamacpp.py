"""llama.cpp's llama-server without speculation: the stock server.

Needs the program: the setting `program`, LOADGATE_LLAMA_SERVER, or llama-server on the PATH. Flags: build 11434,
common/arg.cpp. One pool of KV cache for all slots, no cache of prompts; a share of the device's memory is not among its
flags, so that the cache is sized in tokens. It gives no log-probabilities of prompts; as a reference it scores place by
place.
"""

import os
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from servers.recipes import Command, Flags

ABOUT = "llama.cpp's server as it is, without speculation"
NEEDS = "llama-server, build 11434 or later (LOADGATE_LLAMA_SERVER); a GGUF file"

PROGRAM_VARIABLE = "LOADGATE_LLAMA_SERVER"


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(description="a GGUF file")
    name: str | None = Field(None, description="the name that it is served under; the default is the file's path")
    program: str = Field(
        default_factory=lambda: os.environ.get(PROGRAM_VARIABLE, "llama-server"), description="llama-server's path"
    )
    seed: int = 0
    context: PositiveInt = Field(65_536, description="KV cache of all slots together, tokens")
    slots: PositiveInt = Field(16, description="requests at once")
    extra: Flags = Field([], description="more flags of llama-server, as in a shell")


def command(settings: Settings, port: int, speculation: Sequence[str] = ()) -> Command:
    argv = [settings.program, "--host", "127.0.0.1", "--port", str(port), "-m", settings.model]
    argv += ["--alias", settings.name or settings.model, "--seed", str(settings.seed)]
    argv += ["-c", str(settings.context), "-np", str(settings.slots), "--kv-unified"]
    argv += ["--no-cache-prompt", "--jinja", "--metrics"]
    return Command([*argv, *speculation, *settings.extra])
