"""The same prompt twice: half of them at one moment on two lanes, half one after the other on one lane.

Together they find one seed for all, and replies that are kept and given again.
"""

from loadgen.probes import Material, asked, prompts
from loadgen.prompts import Prompt
from loadgen.request import Request

PROMPTS = 32
LONGEST = 128


def requests(material: Material) -> list[Request]:
    """Twins first, each on a lane of its own; then, on some of those lanes, the others, each followed by itself."""
    seen = material.shape
    known = prompts(seen, min(PROMPTS, len(seen.records)))
    most = min(LONGEST, seen.profile.max_tokens)
    twins, others = known[: -(-len(known) // 2)], known[-(-len(known) // 2) :]
    sent: list[tuple[int, float | None, tuple[str, Prompt]]] = [
        *((2 * i + copy, 0.0, which) for i, which in enumerate(twins) for copy in (0, 1)),
        *((i, None, which) for i, which in enumerate(others) for _ in (0, 1)),
    ]
    return [
        Request(prompt_id=prompt_id, prompt=prompt, kind="completions", asked=asked(most), lane=lane, due_s=due_s)
        for lane, due_s, (prompt_id, prompt) in sent
    ]
