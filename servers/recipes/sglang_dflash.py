"""SGLang with a DFlash drafter, which makes a block of tokens in one pass.

Flags: srt/arg_groups/fields/spec.py of 0.5.23.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, sglang

ABOUT = "SGLang with a DFlash block drafter"
NEEDS = "an NVIDIA GPU; SGLang 0.5.23 or later; a drafter for the model, such as z-lab/Qwen3-8B-DFlash-b16"


class Settings(sglang.Settings):
    draft: str = Field(description="the drafter: a folder, or a name on the model hub")
    num_draft_tokens: PositiveInt = Field(16, description="the block, the bonus token among it")


def command(settings: Settings, port: int) -> Command:
    flags = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", settings.draft]
    flags += ["--speculative-num-draft-tokens", str(settings.num_draft_tokens)]
    return sglang.command(settings, port, flags)
