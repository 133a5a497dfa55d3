"""vLLM with an EAGLE-3 head, which drafts from the target's hidden states.

Flags: vLLM 0.32's config/speculative.py. A head fits one target; RedHatAI and AngelSlim publish some for Qwen3.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, vllm

ABOUT = "vLLM with an EAGLE-3 head"
NEEDS = "vLLM 0.32 or later; a head made for the model, such as RedHatAI/Qwen3-8B-speculator.eagle3"


class Settings(vllm.Settings):
    draft: str = Field(description="the head: a folder, or a name on the model hub")
    num_speculative_tokens: PositiveInt = Field(3, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    return vllm.drafting(settings, port, "eagle3", settings.draft, {"num_speculative_tokens"})
