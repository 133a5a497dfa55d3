"""vLLM that accepts drafts by tossing a coin, whatever the target says: it changes the output, on purpose.

For trying the gates: it must come out DIFFERENT. Flags: rejection_sample_method in vLLM 0.32's
config/speculative.py. A CPU build refuses it.
"""

from pydantic import Field

from servers.recipes import Command, vllm, vllm_draft

ABOUT = "LOSSY on purpose: vLLM that accepts drafts whatever the model says"
NEEDS = "a GPU; vLLM 0.32 or later; a draft model of the same vocabulary"


class Settings(vllm_draft.Settings):
    synthetic_acceptance_length: float = Field(3.5, ge=1, description="tokens a step, the bonus token among them")


def command(settings: Settings, port: int) -> Command:
    keys = {"num_speculative_tokens", "draft_sample_method", "synthetic_acceptance_length"}
    fixed = {"rejection_sample_method": "synthetic"}
    return vllm.drafting(settings, port, "draft_model", settings.draft, keys, fixed)
