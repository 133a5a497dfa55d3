"""vLLM that drafts with a smaller model of the same vocabulary; target and draft share the memory for the KV cache.

Flags: vLLM 0.32's config/speculative.py. On the CPU it samples wrongly at temperatures above 0 (vllm#55005).
"""

from typing import Literal

from pydantic import Field, PositiveInt

from servers.recipes import Command, vllm

ABOUT = "vLLM with a draft model"
NEEDS = "vLLM 0.32 or later (LOADGATE_VLLM_PYTHON); a draft model of the same vocabulary"


class Settings(vllm.Settings):
    draft: str = Field(description="the draft model: a folder, or a name on the model hub")
    num_speculative_tokens: PositiveInt = Field(4, description="tokens drafted a step")
    # A sampled draft is accepted more often than a greedy one; the output's law is the target's with both.
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"


def command(settings: Settings, port: int) -> Command:
    keys = {"num_speculative_tokens", "draft_sample_method"}
    return vllm.drafting(settings, port, "draft_model", settings.draft, keys)
