"""SGLang with an EAGLE-3 head, which drafts from the target's hidden states.

Flags: srt/arg_groups/fields/spec.py of 0.5.23. A head fits one target.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, sglang

ABOUT = "SGLang with an EAGLE-3 head"
NEEDS = "an NVIDIA GPU; SGLang 0.5.23 or later; a head made for the model, such as AngelSlim/Qwen3-8B_eagle3"


class Settings(sglang.Settings):
    draft: str = Field(description="the head: a folder, or a name on the model hub")
    num_steps: PositiveInt = Field(3, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    return sglang.command(settings, port, sglang.chain("EAGLE3", settings.num_steps, settings.draft))
