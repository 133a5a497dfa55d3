"""vLLM with a DSpark drafter: a block in one pass, then a light chain over it (arXiv 2607.05147).

Flags: vLLM 0.32's config/speculative.py, and the card of Dogacel/Qwen3-8B-DSpark for the draft's backend. The V2
runner alone has it, so that a CPU build does not. Drafters are trained without thinking: expect fewer accepted
drafts with it.
"""

from typing import Literal

from pydantic import Field, PositiveInt

from servers.recipes import Command, vllm

ABOUT = "vLLM with a DSpark block drafter"
NEEDS = "a GPU; vLLM 0.32 or later; a drafter made for the model, such as deepseek-ai/dspark_qwen3_8b_block7"


class Settings(vllm.Settings):
    draft: str = Field(description="the drafter: a folder, or a name on the model hub")
    num_speculative_tokens: PositiveInt = Field(7, description="tokens drafted a step: the block")
    attention_backend: str = Field("FLASH_ATTN", description="of the draft; the target keeps its own")
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"


def command(settings: Settings, port: int) -> Command:
    keys = {"num_speculative_tokens", "attention_backend", "draft_sample_method"}
    return vllm.drafting(settings, port, "dspark", settings.draft, keys)
