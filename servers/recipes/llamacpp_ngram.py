"""llama.cpp's server that drafts by looking its last tokens up in what came before; needs no draft model.

A request drafts once its prompt and reply are longer than both sizes together. --spec-draft-n-max, which bounds draft
models, does not bind here, and 48 tokens would be drafted (build 11434, common/speculative.cpp). While it speculates it
tells no log-probabilities of its own: let the stock server score.
"""

from pydantic import Field

from servers.recipes import Command, llamacpp

ABOUT = "llama.cpp's server with n-gram speculation"
NEEDS = "llama-server, build 11434 or later (LOADGATE_LLAMA_SERVER); a GGUF file"


class Settings(llamacpp.Settings):
    lookup: int = Field(12, ge=1, le=1024, description="tokens looked up; the engine's own default")
    draft_max: int = Field(16, ge=1, le=1024, description="tokens drafted a step, where the lookup finds something")


def command(settings: Settings, port: int) -> Command:
    sizes = ["--spec-ngram-simple-size-n", str(settings.lookup), "--spec-ngram-simple-size-m", str(settings.draft_max)]
    return llamacpp.command(settings, port, ["--spec-type", "ngram-simple", *sizes])
