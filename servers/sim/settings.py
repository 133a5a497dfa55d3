"""What can be chosen of the embedded engine: its model, its cost model, its memory, its speculation."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from servers.sim.faults import Fault

BLOCK_TOKENS = 16
"""KV cache granularity, vLLM's usual one."""

Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """One embedded engine. Two engines with equal model_seed, rows and mean_reply_tokens serve the same model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(default="sim", min_length=1, description="the name under which the model is served")
    api_key: str | None = Field(
        default=None, min_length=1, repr=False, description="asked of every /v1 request when set"
    )

    model_seed: int = Field(default=0, ge=0, description="seed of the model's tables")
    rows: int = Field(
        default=4096, ge=64, le=65_536, description="next-token distributions that contexts are hashed to"
    )
    mean_reply_tokens: float = Field(
        default=40, ge=4, le=10_000, description="mean tokens of a reply that ends by itself"
    )
    serves: Literal["target", "draft"] = Field(
        default="target", description="draft: the noisy copy that a speculative engine drafts from, served alone"
    )
    seed: int | None = Field(default=None, ge=0, description="seed of the sampling; fresh entropy when left out")

    speculative: int = Field(default=0, ge=0, le=16, description="tokens drafted a step; 0 speculates not at all")
    draft_noise: float = Field(
        default=2.6, ge=0, le=20, description="sd of the frozen noise on the draft's logits, nat"
    )

    fault: Fault | None = Field(default=None, description="planted: what a lossy server would do, to try the gates on")

    max_model_len: int = Field(default=2048, ge=16, description="longest prompt and reply together, tokens")
    kv_cache_tokens: int = Field(default=8192, ge=16, description="KV cache capacity, tokens; whole blocks of 16 count")
    max_num_seqs: int = Field(default=64, ge=1, description="most sequences in one step")
    max_logprobs: int = Field(default=20, ge=0, le=20, description="most alternatives a position in an answer")

    prompt_logprobs: bool = Field(
        default=True, description="false: none of prompts are given, as by most servers, but those of sampled tokens"
    )

    step_ms: Milliseconds = Field(default=10.0, description="cost of a step: its fixed part")
    sequence_ms: Milliseconds = Field(default=0.1, description="cost of a step: each sequence in it")
    token_ms: Milliseconds = Field(default=0.05, description="cost of a step: each decoded or verified position")
    prefill_token_ms: Milliseconds = Field(default=0.02, description="cost of a step: each prompt token computed in it")
    draft_ms: Milliseconds = Field(default=0.8, description="cost of a step: each position drafted one after another")

    @model_validator(mode="after")
    def _longest_sequence_fits(self) -> Self:
        if self.max_model_len > self.kv_cache_tokens // BLOCK_TOKENS * BLOCK_TOKENS:
            raise ValueError(
                f"max_model_len {self.max_model_len} is more than the KV cache holds ({self.kv_cache_tokens} tokens "
                f"in blocks of {BLOCK_TOKENS}): the longest sequence could never run. Lower one or raise the other."
            )
        return self
