"""Replies at temperature 0: which token is likeliest, where the answer is not a near-tie."""

from loadgen.probes import Material, asked, in_turn, prompts
from loadgen.request import Request

REPLIES = 32
LONGEST = 256


def requests(material: Material) -> list[Request]:
    seen = material.shape
    most = min(LONGEST, seen.profile.max_tokens)
    return [
        Request(
            prompt_id=prompt_id,
            prompt=prompt,
            kind="completions",
            asked=asked(most, temperature=0.0),
            **in_turn(i, seen.lanes),
        )
        for i, (prompt_id, prompt) in enumerate(prompts(seen, min(REPLIES, len(seen.records))))
    ]
