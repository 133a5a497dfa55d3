"""llama.cpp's server that drafts by looking its last tokens up in what came before; needs no draft model.

While it speculates it tells no log-probabilities of its own: let the stock server score.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, llamacpp

ABOUT = "llama.cpp's server with n-gram speculation"
NEEDS = "llama-server, build 11434 or later (LOADGATE_LLAMA_SERVER); a GGUF file"


class Settings(llamacpp.Settings):
    draft_max: PositiveInt = Field(16, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    flags = ["--spec-type", "ngram-simple", "--spec-draft-n-max", str(settings.draft_max)]
    return llamacpp.command(settings, port, flags)
