"""SGLang that drafts from n-grams of the prompts and replies so far; needs no draft model."""

from pydantic import Field, PositiveInt

from servers.recipes import Command, sglang

ABOUT = "SGLang with n-gram speculation"
NEEDS = "a GPU; SGLang 0.5.23 or later"


class Settings(sglang.Settings):
    num_draft_tokens: PositiveInt = Field(8, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    flags = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(settings.num_draft_tokens)]
    return sglang.command(settings, port, flags)
