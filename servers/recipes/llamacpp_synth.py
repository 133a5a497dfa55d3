"""llama.cpp's server that takes so many drafts a step whatever the model says: it changes the output, on purpose.

For trying the gates: it must come out DIFFERENT. Flags: build 11434; the server itself warns that its output is not
valid. A draft model, as it has something to accept at every step: n-grams of ordinary prompts are found too rarely for
a difference to show. The model itself may be the draft.
"""

from typing import Self

from pydantic import Field, model_validator

from servers.recipes import Command, llamacpp_draft

ABOUT = "LOSSY on purpose, it changes the output: llama.cpp's server that accepts drafts whatever the model says"
NEEDS = "llama-server, build 11434 or later (LOADGATE_LLAMA_SERVER); two GGUF files, or one given twice"


class Settings(llamacpp_draft.Settings):
    synthetic_length: float = Field(3.0, ge=1, description="tokens a step, the model's own among them")

    @model_validator(mode="after")
    def _drafts_suffice(self) -> Self:
        if self.synthetic_length > self.draft_max + 1:
            raise ValueError(f"synthetic_length {self.synthetic_length} is more than draft_max {self.draft_max} + 1")
        return self


def command(settings: Settings, port: int) -> Command:
    return llamacpp_draft.command(settings, port, ["--spec-synth-len", str(settings.synthetic_length)])
