"""vLLM that drafts by looking its last tokens up in the prompt and the reply so far; needs no draft model.

Flags: vLLM 0.32's config/speculative.py. On the CPU it samples wrongly at temperatures above 0 (vllm#55005).
"""

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from servers.recipes import Command, vllm

ABOUT = "vLLM with n-gram speculation"
NEEDS = "vLLM 0.32 or later (LOADGATE_VLLM_PYTHON)"


class Settings(vllm.Settings):
    num_speculative_tokens: PositiveInt = Field(4, description="tokens drafted a step")
    prompt_lookup_min: PositiveInt = Field(2, description="the shortest n-gram looked up, in tokens")
    prompt_lookup_max: PositiveInt = Field(4, description="the longest n-gram looked up, in tokens")

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low > high:
            raise ValueError(f"prompt_lookup_min {low} is more than prompt_lookup_max {high}")
        return self


def command(settings: Settings, port: int) -> Command:
    keys = {"num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"}
    return vllm.drafting(settings, port, "ngram", None, keys)
