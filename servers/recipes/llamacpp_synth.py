"""llama.cpp's server that takes so many drafts a step whatever the model says: it changes the output, on purpose.

For trying the gates: it must come out DIFFERENT.
"""

from pydantic import Field

from servers.recipes import Command, llamacpp, llamacpp_ngram

ABOUT = "LOSSY on purpose: llama.cpp's server that accepts drafts whatever the model says"
NEEDS = "llama-server, build 11434 or later (LOADGATE_LLAMA_SERVER); a GGUF file"


class Settings(llamacpp_ngram.Settings):
    synthetic_length: float = Field(3.0, ge=1, description="tokens a step")


def command(settings: Settings, port: int) -> Command:
    flags = ["--spec-type", "ngram-simple", "--spec-draft-n-max", str(settings.draft_max)]
    return llamacpp.command(settings, port, [*flags, "--spec-synth-len", str(settings.synthetic_length)])
