"""Stock vLLM with Qwen3-8B: what the contest's candidates for it are compared with.

Its memory limit there is .9 of the device and 4 GiB, so that the share is given, and not left to the engine. Flags: as
of recipe vllm. The GPU's size is an estimate from the weights (16 GB) and the KV cache of one request of the longest
kind (2.4 GB); the contest ran on a B200.
"""

from pydantic import Field, PositiveInt

from servers.recipes import vllm

ABOUT = "the contest's stock server of Qwen3-8B"
NEEDS = "a GPU of 24 GB or more; vLLM 0.32 or later"

MODEL, LONGEST = "Qwen/Qwen3-8B", 16_384


class Settings(vllm.Settings):
    model: str = Field(MODEL, description="a folder, or a name on the model hub")
    max_model_len: PositiveInt | None = Field(LONGEST, description="tokens")


command = vllm.command
