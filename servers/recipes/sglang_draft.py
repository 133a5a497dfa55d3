"""SGLang that drafts with a smaller model of the same vocabulary.

Flags: srt/arg_groups/fields/spec.py of 0.5.23. Its own word for it is STANDALONE.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, sglang

ABOUT = "SGLang with a draft model"
NEEDS = "an NVIDIA GPU; SGLang 0.5.23 or later; a draft model of the same vocabulary"


class Settings(sglang.Settings):
    draft: str = Field(description="the draft model: a folder, or a name on the model hub")
    num_steps: PositiveInt = Field(4, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    return sglang.command(settings, port, sglang.chain("STANDALONE", settings.num_steps, settings.draft))
