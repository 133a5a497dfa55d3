"""Qwen3-8B drafted by Qwen3-0.6B, four tokens a step: the contest's reference for a draft model.

The draft's revision is pinned: another one accepts another share. A token takes 114,688 bytes of KV cache in the
draft beside 147,456 in the target, so that only 56 % as many fit. Flags: as of recipe vllm-draft. The GPU's size is an
estimate.
"""

from pydantic import Field, PositiveInt

from servers.recipes import Command, qwen3_8b, vllm, vllm_draft

ABOUT = "the contest's Qwen3-8B with Qwen3-0.6B as draft"
NEEDS = "a GPU of 32 GB or more; vLLM 0.32 or later"


class Settings(vllm_draft.Settings):
    model: str = Field(qwen3_8b.MODEL, description="a folder, or a name on the model hub")
    draft: str = Field("Qwen/Qwen3-0.6B", description="the draft model: a folder, or a name on the model hub")
    revision: str = Field("c1899de", description="the draft's commit; a hub may want all 40 digits")
    max_model_len: PositiveInt | None = Field(qwen3_8b.LONGEST, description="tokens")


def command(settings: Settings, port: int) -> Command:
    keys = {"revision", "num_speculative_tokens", "draft_sample_method"}
    return vllm.drafting(settings, port, "draft_model", settings.draft, keys)
