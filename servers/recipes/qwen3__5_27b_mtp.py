"""Qwen3.5-27B with its own multi-token prediction, fewer tokens a step the more requests run: 6, 4, 3.

Full CUDA graphs for each of them are the V2 runner's; V1 falls back to piecewise ones (vLLM 0.32's config/vllm.py).
Where the contest's server changed the number was not published: the bounds are a setting. Its own engine was
patched: give it as engine_dir. The GPU's size is an estimate.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, field_validator

from servers.recipes import Command, qwen3__5_27b, vllm, vllm_mtp

ABOUT = "the contest's Qwen3.5-27B with multi-token prediction"
NEEDS = "a GPU of 80 GB or more; vLLM 0.32 or later"


def _read(given: Any) -> Any:
    """Without commas, which part the settings of recipe:NAME,key=value."""
    return [tier.partition(":")[::2] for tier in given.split("/")] if isinstance(given, str) else given


Tiers = Annotated[tuple[tuple[PositiveInt, NonNegativeInt], ...], BeforeValidator(_read)]


class Settings(vllm_mtp.Settings):
    model: str = Field(qwen3__5_27b.MODEL, description="a folder, or a name on the model hub")
    max_model_len: PositiveInt | None = Field(qwen3__5_27b.LONGEST, description="tokens")
    num_speculative_tokens: PositiveInt = Field(6, description="most tokens drafted a step")
    tiers: Tiers = Field(
        ((4, 6), (32, 4), (256, 3)),
        description="tokens drafted up to so many requests in a step, as 4:6/32:4/256:3; the last holds beyond",
    )
    cudagraph_mode: str = Field("FULL_AND_PIECEWISE", description="of vLLM's compilation config")

    @field_validator("tiers")
    @classmethod
    def _bounds_rise(cls, tiers: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        bounds = [bound for bound, _ in tiers]
        if not bounds or bounds != sorted(set(bounds)):
            raise ValueError("the numbers of requests must rise from one to the next")
        return tiers


def command(settings: Settings, port: int) -> Command:
    starts = [1, *(bound + 1 for bound, _ in settings.tiers)]
    config = {"method": "mtp", **settings.model_dump(include={"num_speculative_tokens", "draft_sample_method"})}
    config["num_speculative_tokens_per_batch_size"] = [
        (start, bound, tokens) for start, (bound, tokens) in zip(starts, settings.tiers, strict=False)
    ]
    drafting = vllm.speculating(qwen3__5_27b.command(settings, port), config)
    graphs = ["--compilation-config", json.dumps({"cudagraph_mode": settings.cudagraph_mode})]
    return vllm.with_flags(drafting, graphs, {"VLLM_USE_V2_MODEL_RUNNER": "1"})
