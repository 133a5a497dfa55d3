"""SGLang with a DSpark drafter: a block in one pass, then a light chain over it (arXiv 2607.05147)."""

from pydantic import Field, PositiveInt

from servers.recipes import Command, sglang

ABOUT = "SGLang with a DSpark block drafter"
NEEDS = "a GPU; SGLang 0.5.23 or later; a drafter made for the model, such as deepseek-ai/dspark_qwen3_8b_block7"


class Settings(sglang.Settings):
    draft: str = Field(description="the drafter: a folder, or a name on the model hub")
    block_size: PositiveInt = Field(7, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    flags = ["--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", settings.draft]
    flags += ["--speculative-dspark-block-size", str(settings.block_size)]
    return sglang.command(settings, port, flags)
