"""vLLM that drafts with the target's own layer for multi-token prediction; needs no draft model.

Flags: vLLM 0.32's config/speculative.py. A model with one such layer runs it again for every further token.
"""

from typing import Literal

from pydantic import Field, PositiveInt

from servers.recipes import Command, vllm

ABOUT = "vLLM with the model's own multi-token prediction"
NEEDS = "vLLM 0.32 or later; a model that has such layers (DeepSeek, GLM, MiMo, Qwen3-Next, Qwen3.5)"


class Settings(vllm.Settings):
    num_speculative_tokens: PositiveInt = Field(1, description="tokens drafted a step")
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"


def command(settings: Settings, port: int) -> Command:
    return vllm.drafting(settings, port, "mtp", None, {"num_speculative_tokens", "draft_sample_method"})
