"""A pass like the timed ones in which one request in twenty asks for log-probabilities, and no other is told of it."""

import random

from loadgen.probes import Material, asked, in_turn, prompts
from loadgen.record import SCORED_TOP_K
from loadgen.request import Request
from loadgen.seeds import derived

ASKING, ONE_IN = 6, 20


def requests(material: Material) -> list[Request]:
    seen = material.shape
    found = prompts(seen, ASKING * ONE_IN)
    asking = set(
        random.Random(derived(material.seed, "probe", "logprobs")).sample(range(len(found)), ASKING if found else 0)
    )
    return [
        Request(
            prompt_id=prompt_id,
            prompt=prompt,
            kind="completions",
            asked=asked(seen.profile.max_tokens, **({"logprobs": SCORED_TOP_K} if i in asking else {})),
            **in_turn(i, seen.lanes),
        )
        for i, (prompt_id, prompt) in enumerate(found)
    ]
