"""Qwen3-8B with a DSpark drafter of seven tokens a block: the contest's block drafter.

The contest's own drafter was a local folder: give it as draft_dir. Flags: as of recipe vllm-dspark. The GPU's size is
an estimate.
"""

from typing import Literal

from pydantic import Field, PositiveInt

from servers.recipes import Command, qwen3_8b, vllm

ABOUT = "the contest's Qwen3-8B with a DSpark block drafter"
NEEDS = "a GPU of 32 GB or more; vLLM 0.32 or later"


class Settings(qwen3_8b.Settings):
    draft_dir: str = Field(
        "deepseek-ai/dspark_qwen3_8b_block7", description="the drafter: a folder, or a name on the hub"
    )
    num_speculative_tokens: PositiveInt = Field(7, description="tokens drafted a step: the block")
    attention_backend: str = Field("FLASH_ATTN", description="of the draft; the target keeps its own")
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"


def command(settings: Settings, port: int) -> Command:
    keys = {"num_speculative_tokens", "attention_backend", "draft_sample_method"}
    return vllm.drafting(settings, port, "dspark", settings.draft_dir, keys)
