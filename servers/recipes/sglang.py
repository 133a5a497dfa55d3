"""SGLang without speculation: the stock server.

Needs a Python in whose environment SGLang is installed: the setting `python`, or LOADGATE_SGLANG_PYTHON. Flags:
sglang.launch_server of 0.5.23 (srt/arg_groups/fields). Speculation lowers the number of requests at once to 48 where it
is not given, so it always is; the radix cache is off, and sampling defaults are the API's, not the model's.

The speculating recipes share a trap: on devices other than NVIDIA's drafts may be verified greedily, whatever
temperature was asked for (CPU, XPU, and ROCm but for EAGLE; _verify_uses_greedy in srt/speculative/eagle_utils.py).
Such a server is lossy, and a gate finds it so.
"""

import os
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

from servers.recipes import Command, Flags

ABOUT = "SGLang as it is, without speculation"
NEEDS = "a GPU; SGLang 0.5.23 or later (LOADGATE_SGLANG_PYTHON)"

PYTHON_VARIABLE = "LOADGATE_SGLANG_PYTHON"


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(description="a folder, or a name on the model hub")
    name: str | None = Field(None, description="the name that it is served under; the default is `model`")
    python: str = Field(
        default_factory=lambda: os.environ.get(PYTHON_VARIABLE, ""),
        validate_default=True,
        description="the Python of SGLang's environment",
    )
    dtype: str = "bfloat16"
    seed: int = 0
    context_length: PositiveInt = Field(16_384, description="tokens")
    max_running_requests: PositiveInt = 256
    mem_fraction_static: float = Field(0.85, gt=0, le=1, description="weights and KV cache, of the GPU's memory")
    extra: Flags = Field([], description="more flags of SGLang, as in a shell")

    @field_validator("python")
    @classmethod
    def _python_given(cls, python: str) -> str:
        if not python:
            raise ValueError(f"neither this setting nor {PYTHON_VARIABLE} names a Python with SGLang")
        return python


def command(settings: Settings, port: int, speculation: Sequence[str] = ()) -> Command:
    argv = [settings.python, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--model-path", settings.model, "--served-model-name", settings.name or settings.model]
    argv += ["--dtype", settings.dtype, "--random-seed", str(settings.seed)]
    argv += ["--context-length", str(settings.context_length)]
    argv += ["--max-running-requests", str(settings.max_running_requests)]
    argv += ["--mem-fraction-static", str(settings.mem_fraction_static)]
    argv += ["--disable-radix-cache", "--sampling-defaults", "openai"]
    argv += ["--enable-metrics", "--enable-cache-report", "--decode-log-interval", "10"]
    return Command([*argv, *speculation, *settings.extra])


def chain(algorithm: str, steps: int, draft: str | None = None) -> list[str]:
    """Flags of a drafter that makes one token after the other; the window holds the bonus token too."""
    window = ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1"]
    window += ["--speculative-num-draft-tokens", str(steps + 1)]
    path = [] if draft is None else ["--speculative-draft-model-path", draft]
    return ["--speculative-algorithm", algorithm, *path, *window]
