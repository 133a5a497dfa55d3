"""llama.cpp's server that drafts with a smaller model of the same vocabulary.

Flags: build 11434, docs/speculative.md. While it speculates it tells no log-probabilities of its own: let the stock
server score.
"""

from collections.abc import Sequence

from pydantic import Field, PositiveInt

from servers.recipes import Command, llamacpp

ABOUT = "llama.cpp's server with a draft model"
NEEDS = "llama-server, build 11434 or later (LOADGATE_LLAMA_SERVER); two GGUF files"


class Settings(llamacpp.Settings):
    draft: str = Field(description="the draft model, a GGUF file")
    draft_max: PositiveInt = Field(4, description="tokens drafted a step")


def command(settings: Settings, port: int, more: Sequence[str] = ()) -> Command:
    flags = ["-md", settings.draft, "--spec-type", "draft-simple", "--spec-draft-n-max", str(settings.draft_max)]
    return llamacpp.command(settings, port, [*flags, *more])
