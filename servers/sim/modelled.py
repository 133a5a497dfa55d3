"""What the cost model says an engine's speed should have been, from the steps that it logged."""

from collections.abc import Mapping, Sequence
from typing import Any

LATE_SHARE = 0.02
"""More late steps than this, and the engine was too slow for its own model: it says so instead of a speed."""


def tokens_per_s(steps: Sequence[Mapping[str, Any]], start_ns: int, end_ns: int) -> float | None:
    """Tokens emitted over the modelled time of the steps that end in (start_ns, end_ns]; None where there are none.

    steps: entries of /sim/steps. A step's modelled time follows from its batch size and drafted positions, the tokens
    that it emitted from the accepted lengths; how long it really took is not looked at.
    """
    inside = [step for step in steps if start_ns < step["end_ns"] <= end_ns]
    modelled_ns = sum(step["end_ns"] - step["start_ns"] for step in inside)
    emitted: int = sum(step["emitted"] for step in inside)
    return emitted / modelled_ns * 1e9 if modelled_ns else None
