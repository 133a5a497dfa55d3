"""vLLM without speculation: the stock server.

Needs a Python in whose environment vLLM is installed: the setting `python`, or LOADGATE_VLLM_PYTHON. The flags are
those of a fair comparison: the model's own sampling defaults and the prefix cache are off, the memory share is
explicit, and the log-probabilities are raw and complete to the 20th. The block size of the KV cache is the engine's
choice, which a drafter with another attention backend may change: extra="--block-size 16" on both sides holds it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from servers.recipes import Command, Flags

ABOUT = "vLLM as it is, without speculation"
NEEDS = "vLLM 0.32 or later (LOADGATE_VLLM_PYTHON)"

PYTHON_VARIABLE = "LOADGATE_VLLM_PYTHON"
_GPU_DEVICES = [Path("/dev/nvidiactl"), Path("/dev/kfd")]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(description="a folder, or a name on the model hub")
    name: str | None = Field(None, description="the name that it is served under; the default is `model`")
    python: str = Field(
        default_factory=lambda: os.environ.get(PYTHON_VARIABLE, ""),
        validate_default=True,
        description="the Python of vLLM's environment",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda (a ROCm device is cuda too)")
    dtype: str = "bfloat16"
    seed: int = 0
    max_model_len: PositiveInt | None = Field(None, description="tokens; the default is the model's own")
    max_num_seqs: PositiveInt | None = Field(None, description="the default is 256 on a GPU, 16 on the CPU")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="a share of the GPU's memory; a GPU only")
    kv_cache_gib: PositiveInt = Field(2, description="whole GiB for the KV cache; the CPU only")
    cpus: str = Field("auto", description="cores to bind to: auto, nobind, or a list as 0-3,6; the CPU only")
    threads: PositiveInt | None = Field(None, description="OpenMP threads where cpus is nobind; the CPU only")
    engine_dir: Path | None = Field(None, description="a patched vLLM's folder, first in PYTHONPATH of the server")
    api_key_env: str | None = Field(None, description="the environment variable that holds the key to be asked for")
    extra: Flags = Field([], description="more flags of vLLM, as in a shell")

    @field_validator("python")
    @classmethod
    def _python_given(cls, python: str) -> str:
        if not python:
            raise ValueError(f"neither this setting nor {PYTHON_VARIABLE} names a Python with vLLM")
        return python

    @field_validator("engine_dir")
    @classmethod
    def _is_a_folder(cls, engine_dir: Path | None) -> Path | None:
        if engine_dir is not None and not engine_dir.is_dir():
            raise ValueError(f"{engine_dir} is no folder")
        return engine_dir

    @field_validator("extra")
    @classmethod
    def _no_key_in_sight(cls, extra: list[str]) -> list[str]:
        if any(flag.split("=")[0] == "--api-key" for flag in extra):
            raise ValueError("--api-key would be seen in the list of processes and in the log: set api_key_env instead")
        return extra

    @model_validator(mode="after")
    def _key_exists(self) -> Self:
        if self.api_key_env and not os.environ.get(self.api_key_env):
            raise ValueError(f"api_key_env names {self.api_key_env}, which is not set or empty in the environment")
        return self

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda" or (self.device == "auto" and any(path.exists() for path in _GPU_DEVICES))


def command(settings: Settings, port: int, draft: str | None = None) -> Command:
    """draft: a second model that will be loaded, which decides whether the hub is needed."""
    argv = [settings.python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--model", settings.model]
    argv += ["--served-model-name", settings.name or settings.model]
    argv += ["--dtype", settings.dtype, "--seed", str(settings.seed)]
    if settings.max_model_len is not None:
        argv += ["--max-model-len", str(settings.max_model_len)]
    argv += _FAIR + (_on_gpu(settings) if settings.on_gpu else _on_cpu(settings)) + settings.extra
    secrets = {"VLLM_API_KEY": settings.api_key_env} if settings.api_key_env else {}
    return Command(argv, _environment(settings, draft or settings.model), secrets)


def speculating(stock: Command, config: Mapping[str, Any]) -> Command:
    """The stock server's command with speculation added, and its figures in the usage of every reply."""
    flags = ["--per-request-spec-decode-metrics", "summary", "--speculative-config", json.dumps(config)]
    return replace(stock, argv=stock.argv + flags)


def drafting(
    settings: Settings,
    port: int,
    method: str,
    draft: str | None,
    keys: set[str],
    fixed: Mapping[str, Any] | None = None,
) -> Command:
    """The stock server's command with this method; keys: settings that go into its configuration as they are."""
    config = {"method": method, **({} if draft is None else {"model": draft}), **settings.model_dump(include=keys)}
    return speculating(command(settings, port, draft), config | dict(fixed or {}))


def with_flags(made: Command, flags: list[str], env: Mapping[str, str] | None = None) -> Command:
    return replace(made, argv=made.argv + flags, env={**made.env, **(env or {})})


_FAIR = [
    *("--generation-config", "vllm"),  # else the model's file sets temperature, top_p and top_k unseen
    "--no-enable-prefix-caching",
    *("--max-logprobs", "20", "--logprobs-mode", "raw_logprobs"),
    "--return-tokens-as-token-ids",  # two ids with one text stay two entries of the log-probabilities
    "--enable-prompt-tokens-details",  # cached tokens in the usage
    "--disable-uvicorn-access-log",
]


def _on_gpu(settings: Settings) -> list[str]:
    utilization = ["--gpu-memory-utilization", str(settings.gpu_memory_utilization)]
    return [*utilization, "--max-num-seqs", str(settings.max_num_seqs or 256), "--max-num-batched-tokens", "8192"]


def _on_cpu(settings: Settings) -> list[str]:
    return ["--enforce-eager", "--max-num-seqs", str(settings.max_num_seqs or 16)]


def _environment(settings: Settings, draft: str) -> dict[str, str]:
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if Path(settings.model).is_dir() and Path(draft).is_dir():
        env["HF_HUB_OFFLINE"] = "1"  # folders need no hub, and an unreachable one costs minutes
    if settings.engine_dir is not None:
        before = os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = os.pathsep.join([str(settings.engine_dir), *([before] if before else [])])
    if not settings.on_gpu:
        env |= {"VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib), "VLLM_CPU_OMP_THREADS_BIND": settings.cpus}
        if settings.threads is not None:
            env["OMP_NUM_THREADS"] = str(settings.threads)
    return env
