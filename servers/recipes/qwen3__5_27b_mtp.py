"""Qwen3.5-27B with its own multi-token prediction, fewer tokens a step the more requests run: 6, 4, 3.

Full CUDA graphs for each of them are the V2 runner's; V1 falls back to piecewise ones (vLLM 0.32's config/vllm.py).
Where the contest's server changed the number was not published: the bounds are a setting. Its own engine was
patched: give it as engine_dir.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveInt, field_validator

from servers.recipes import Command, qwen3__5_27b, vllm, vllm_mtp

ABOUT = "the contest's Qwen3.5-27B with multi-token prediction"
NEEDS = "a GPU of 80 GB or more; vLLM 0.32 or later"


def _read(given: Any) -> Any:
    return json.loads(given) if isinstance(given, str) else given


Tiers = Annotated[tuple[tuple[PositiveInt, PositiveInt, int], ...], BeforeValidator(_read)]


class Settings(vllm_mtp.Settings):
    model: str = Field(qwen3__5_27b.MODEL, description="a folder, or a name on the model hub")
    max_model_len: PositiveInt | None = Field(qwen3__5_27b.LONGEST, description="tokens")
    num_speculative_tokens: PositiveInt = Field(6, description="most tokens drafted a step")
    tiers: Tiers = Field(
        ((1, 4, 6), (5, 32, 4), (33, 256, 3)),
        description="JSON: [[from, to, tokens], …] by requests in a step, from 1 on",
    )
    cudagraph_mode: str = Field("FULL_AND_PIECEWISE", description="of vLLM's compilation config")

    @field_validator("tiers")
    @classmethod
    def _whole(cls, tiers: Sequence[tuple[int, int, int]]) -> Sequence[tuple[int, int, int]]:
        starts = [1, *(last + 1 for _, last, _ in tiers)]
        if not tiers or any(
            first != start or last < first for (first, last, _), start in zip(tiers, starts, strict=False)
        ):
            raise ValueError("the ranges must begin at 1 and follow each other without a gap")
        return tiers


def command(settings: Settings, port: int) -> Command:
    fixed = {"num_speculative_tokens_per_batch_size": settings.tiers}
    keys = {"num_speculative_tokens", "draft_sample_method"}
    drafting = vllm.drafting(settings, port, "mtp", None, keys, fixed)
    graphs = ["--compilation-config", json.dumps({"cudagraph_mode": settings.cudagraph_mode})]
    return vllm.with_flags(drafting, ["--language-model-only", *graphs], {"VLLM_USE_V2_MODEL_RUNNER": "1"})
