"""Which prefixes show a frozen error of the model most, and how repeated replies reach them.

At a prefix with next-token chances p, n draws from q give Q with mean ‖q − p‖². Noise of sd s on the logits moves it by
about s²·Σ_{c≤k} p²(1 − 2p + s₂), and by chance alone its sd is √(2(s₂ − 2s₃ + s₂²)/(n(n − 1))), s_m = Σ p^m over all
cells. λ is the ratio of the two without s and n. By entropy one would choose prefixes of a wide choice, where two draws
hardly ever agree.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.prompts import Prompt
from loadgen.record import Record
from loadgen.seeds import derived

Rows = np.ndarray[Any, np.dtype[np.void]]
Floats = npt.NDArray[np.float64]

LEAD = 1
"""Tokens before the prefix from which a reply of a speculating server starts: its first comes without drafts. Another
one would leave fewer prefixes to choose from, and fewer replies that reach them."""

RANDOM = 120
"""Prefixes where the reference has scored nothing to choose them by."""

_SURE = 0.8  # of a start's replies reach its prefix


@dataclass(frozen=True, slots=True)
class Start:
    """A place in a scored reply. position: of the token whose law is asked for; a reply starts `lead` tokens before."""

    request: int
    position: int
    lead: int


def weights(rows: Rows) -> Floats:
    """(n,) λ of scored positions; 0 where nothing is listed, or nothing is open."""
    p = np.exp(np.where(rows["ids"] >= 0, rows["logprobs"], -np.inf).astype(np.float64))
    other = np.clip(1 - p.sum(axis=1), 0, 1)
    s2, s3 = ((p**power).sum(axis=1) + other**power for power in (2, 3))
    moved = (p**2 * (1 - 2 * p + s2[:, None])).sum(axis=1)
    by_chance = s2 - 2 * s3 + s2**2
    return np.asarray(np.where(by_chance > 1e-12, moved / np.sqrt(np.maximum(by_chance, 1e-12)), 0), np.float64)


def chosen(parts: Sequence[Rows], count: int, lead: int) -> list[Start]:
    """The best starts over all parts. lead 0: the prefix itself; else only where its last tokens are nearly sure.

    Of places that have one law to the last bit (a prompt asked again, a small model) the first: the others would show
    the same error once more.
    """
    if not any(len(part) for part in parts):
        return []
    rows = np.concatenate(parts)
    worth = weights(rows) * _reach(rows, lead)
    best = np.argsort(-worth, kind="stable")[: int((worth > 0).sum())]
    found: dict[bytes, Start] = {}
    for i in best.tolist():
        if len(found) == count:
            break
        law = rows["ids"][i].tobytes() + rows["logprobs"][i].tobytes()
        found.setdefault(law, Start(int(rows["request"][i]), int(rows["position"][i]), lead))
    return list(found.values())


def _reach(rows: Rows, lead: int) -> Floats:
    """Chance that a reply that starts `lead` tokens earlier comes to the prefix; 0 where that is unlikely."""
    total = np.zeros(len(rows))
    for back in range(1, lead + 1):
        before = np.roll(rows, back)
        follows = (before["request"] == rows["request"]) & (before["position"] == rows["position"] - back)
        total += np.where(follows, np.nan_to_num(before["logprob"].astype(np.float64), nan=-np.inf), -np.inf)
    reach = np.exp(total)
    return np.where(reach >= _SURE, reach, 0) if lead else reach


def at_random(records: Sequence[Record], seed: int) -> list[Prompt | None]:
    """RANDOM prefixes of replies, where nothing tells which would show most: a reply each, any place in it alike."""
    rng = random.Random(derived(seed, "probe", "prefixes"))
    known = [
        (record.prompt_token_ids, record.token_ids)
        for record in records
        if record.prompt_token_ids is not None and record.token_ids
    ]
    return [
        Prompt(token_ids=prompt + ids[: rng.randrange(len(ids))])
        for prompt, ids in rng.sample(known, min(RANDOM, len(known)))
    ]
