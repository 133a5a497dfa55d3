"""SGLang that drafts from n-grams of the replies so far; needs no draft model.

Flags: srt/arg_groups/fields/spec.py of 0.5.23. It verifies a tree, of which the root is no draft. What was generated
is kept over requests: a prompt that is sent again is drafted from its earlier reply.
"""

from pydantic import Field

from servers.recipes import Command, sglang

ABOUT = "SGLang with n-gram speculation"
NEEDS = "an NVIDIA GPU; SGLang 0.5.23 or later"


class Settings(sglang.Settings):
    num_draft_tokens: int = Field(8, ge=2, description="places in the tree a step, the last token among them")


def command(settings: Settings, port: int) -> Command:
    flags = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(settings.num_draft_tokens)]
    return sglang.command(settings, port, flags)
