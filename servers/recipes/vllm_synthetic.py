"""vLLM that accepts drafts by tossing a coin, whatever the target says: it changes the output, on purpose.

For trying the gates: it must come out DIFFERENT. Flags: rejection_sample_method in vLLM 0.32's
config/speculative.py. A CPU build takes them and fails when it verifies (utils/cpu_triton_utils.py).
"""

from typing import Self

from pydantic import Field, model_validator

from servers.recipes import Command, vllm, vllm_draft

ABOUT = "LOSSY on purpose, it changes the output: vLLM that accepts drafts whatever the model says"
NEEDS = "a GPU; vLLM 0.32 or later; a draft model of the same vocabulary"


class Settings(vllm_draft.Settings):
    synthetic_acceptance_length: float = Field(3.5, ge=1, description="tokens a step, the bonus token among them")

    @model_validator(mode="after")
    def _drafts_suffice(self) -> Self:
        most = self.num_speculative_tokens + 1
        if self.synthetic_acceptance_length > most:
            raise ValueError(f"synthetic_acceptance_length {self.synthetic_acceptance_length} is more than {most}")
        return self


def command(settings: Settings, port: int) -> Command:
    keys = {"num_speculative_tokens", "draft_sample_method", "synthetic_acceptance_length"}
    fixed = {"rejection_sample_method": "synthetic"}
    return vllm.drafting(settings, port, "draft_model", settings.draft, keys, fixed)
