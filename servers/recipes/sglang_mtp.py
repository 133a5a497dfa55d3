"""SGLang that drafts with the target's own layer for multi-token prediction; needs no draft model.

Flags: srt/arg_groups/fields/spec.py of 0.5.23. NEXTN is EAGLE with the target's own weights as draft.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, sglang

ABOUT = "SGLang with the model's own multi-token prediction"
NEEDS = "an NVIDIA GPU; SGLang 0.5.23 or later; a model that has such layers, such as Qwen3.5"


class Settings(sglang.Settings):
    num_steps: PositiveInt = Field(3, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    return sglang.command(settings, port, sglang.chain("NEXTN", settings.num_steps))
