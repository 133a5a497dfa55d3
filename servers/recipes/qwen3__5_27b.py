"""Stock vLLM with Qwen3.5-27B: what the contest's candidates for it are compared with.

The checkpoint has a vision tower; without it there is more room for the KV cache, on both sides alike.
Flags: as of recipe vllm, and --language-model-only of vLLM 0.32's engine/arg_utils.py. The GPU's size is an estimate.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, vllm

ABOUT = "the contest's stock server of Qwen3.5-27B"
NEEDS = "a GPU of 80 GB or more; vLLM 0.32 or later"

MODEL, LONGEST = "Qwen/Qwen3.5-27B", 16_384


class Settings(vllm.Settings):
    model: str = Field(MODEL, description="a folder, or a name on the model hub")
    max_model_len: PositiveInt | None = Field(LONGEST, description="tokens")


def command(settings: vllm.Settings, port: int) -> Command:
    return vllm.with_flags(vllm.command(settings, port), ["--language-model-only"])
