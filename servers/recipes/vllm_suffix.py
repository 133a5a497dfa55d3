"""vLLM that drafts from suffix trees of the prompts and replies so far; needs no draft model.

Flags: vLLM 0.32's config/speculative.py. Runs on the V1 runner, without async scheduling. Replies are kept over
requests: a prompt that is sent again is drafted from its earlier reply.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, vllm

ABOUT = "vLLM with suffix decoding"
NEEDS = "vLLM 0.32 or later and arctic-inference 0.1.1 in one environment"


class Settings(vllm.Settings):
    num_speculative_tokens: PositiveInt = Field(8, description="most tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    return vllm.drafting(settings, port, "suffix", None, {"num_speculative_tokens"})
