"""SGLang that accepts a draft where the target gives it some chance, without a fair test: it changes the output.

For trying the gates: it must come out DIFFERENT. Flags: srt/arg_groups/fields/spec.py of 0.5.23. Both thresholds are 1
in a lossless server. Below, a draft passes where its probability exceeds the single one, and otherwise with its
probability divided by the other.
"""

from pydantic import Field

from servers.recipes import Command, sglang, sglang_draft

ABOUT = "LOSSY on purpose, it changes the output: SGLang that accepts drafts above a threshold"
NEEDS = "an NVIDIA GPU; SGLang 0.5.23 or later; a draft model of the same vocabulary"


class Settings(sglang_draft.Settings):
    threshold: float = Field(0.8, gt=0, lt=1, description="chance from which on a draft is taken")


def command(settings: Settings, port: int) -> Command:
    at = str(settings.threshold)
    flags = ["--speculative-accept-threshold-single", at, "--speculative-accept-threshold-acc", at]
    return sglang.command(settings, port, [*sglang.chain("STANDALONE", settings.num_steps, settings.draft), *flags])
