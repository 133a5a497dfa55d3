"""vLLM with a DFlash drafter, which makes a block of tokens in one pass.

Flags: vLLM 0.32's config/speculative.py. The draft needs an attention backend that looks both ways in a block.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, vllm

ABOUT = "vLLM with a DFlash block drafter"
NEEDS = "a GPU; vLLM 0.32 or later; a drafter made for the model, such as z-lab/Qwen3-8B-DFlash-b16"


class Settings(vllm.Settings):
    draft: str = Field(description="the drafter: a folder, or a name on the model hub")
    num_speculative_tokens: PositiveInt = Field(15, description="tokens drafted a step: the block less one")
    attention_backend: str = Field("FLASH_ATTN", description="of the draft; the target keeps its own")


def command(settings: Settings, port: int) -> Command:
    keys = {"num_speculative_tokens", "attention_backend"}
    return vllm.drafting(settings, port, "dflash", settings.draft, keys)
