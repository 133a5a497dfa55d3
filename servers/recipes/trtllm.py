"""TensorRT-LLM's trtllm-serve on its PyTorch backend, without speculation.

Flags: tensorrt_llm/commands/serve.py at commit 00209af. It takes no seed, no name to be
served under and no switch for a cache of prefixes. Speculation is told to it in a YAML file: give one with
extra="--config FILE". Not known here are whether it keeps prefixes, and whether the model's own sampling defaults apply
where a request does not say: send all of them.
"""

import os

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from servers.recipes import Command, Flags

ABOUT = "TensorRT-LLM's trtllm-serve"
NEEDS = "an NVIDIA GPU; TensorRT-LLM 1.3 or later (LOADGATE_TRTLLM_SERVE)"

PROGRAM_VARIABLE = "LOADGATE_TRTLLM_SERVE"


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(description="a folder, or a name on the model hub")
    program: str = Field(
        default_factory=lambda: os.environ.get(PROGRAM_VARIABLE, "trtllm-serve"), description="trtllm-serve's path"
    )
    max_batch_size: PositiveInt = 256
    max_seq_len: PositiveInt = Field(16_384, description="tokens")
    kv_cache_share: float = Field(0.85, gt=0, le=1, description="of the memory that is free once the model is loaded")
    extra: Flags = Field([], description="more flags of trtllm-serve, as in a shell")


def command(settings: Settings, port: int) -> Command:
    argv = [settings.program, settings.model, "--backend", "pytorch", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--max_batch_size", str(settings.max_batch_size), "--max_seq_len", str(settings.max_seq_len)]
    argv += ["--kv_cache_free_gpu_memory_fraction", str(settings.kv_cache_share)]
    return Command(argv + settings.extra)
