"""Settings in which two servers differ by what they say, and what that does to a comparison."""

import math
from collections.abc import Mapping

from loadgen.record import Setting

_MATTERS: Mapping[Setting, str] = {
    "prefix cache": "what one answers from its cache, the other computes",
    "KV cache (tokens)": "under busy load one of them is fuller; speculation that shares the memory costs it this",
    "KV cache block size": "they fill their caches in other steps",
    "KV cache type": "a smaller type holds more and changes the model's output",
    "share of the memory": "one may take more of the device",
    "most sequences at once": "one makes requests wait where the other does not",
    "longest sequence": "one cuts replies off where the other goes on",
}
_ALIKE = 0.01  # relative; numbers that are computed from free memory are never quite equal


def differences(stock: Mapping[Setting, str], candidate: Mapping[Setting, str]) -> list[str]:
    """A sentence for each setting that both tell, and tell differently."""
    return [
        f"The servers are set up differently: {name} is {stock[name]} on stock and {candidate[name]} on the candidate: "
        f"{why}."
        for name, why in _MATTERS.items()
        if name in stock and name in candidate and not _alike(stock[name], candidate[name])
    ]


def _alike(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=_ALIKE)
    except ValueError:
        return one == other
