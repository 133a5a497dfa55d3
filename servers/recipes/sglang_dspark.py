"""SGLang with a DSpark drafter: a block in one pass, then a light chain over it (arXiv 2607.05147).

Flags: srt/arg_groups/fields/spec.py of 0.5.23. The number of draft tokens follows from the block, so that it is not
given. Drafters are trained without thinking: expect fewer accepted drafts with it.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, sglang

ABOUT = "SGLang with a DSpark block drafter"
NEEDS = "an NVIDIA GPU; SGLang 0.5.23 or later; a drafter for the model, such as deepseek-ai/dspark_qwen3_8b_block7"


class Settings(sglang.Settings):
    draft: str = Field(description="the drafter: a folder, or a name on the model hub")
    block_size: PositiveInt = Field(7, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    flags = ["--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", settings.draft]
    flags += ["--speculative-dspark-block-size", str(settings.block_size)]
    return sglang.command(settings, port, flags)
