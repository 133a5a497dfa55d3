"""Requests that no profile holds, sent after the timed passes: one file a probe, its name the probe's in the records.

A probe's file has `requests(material) -> list[Request]` (fixed_text has records instead): pure, the same for both
endpoints, and empty where there is nothing to make them of. What is sampled is sampled as the reference scores it:
temperature 1, nothing cut off.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

from loadgen.profile import Profile, ProfileError, Sampling
from loadgen.prompts import Prompt
from loadgen.record import Asked, Probe, Record
from loadgen.request import Request

if TYPE_CHECKING:
    import numpy as np

    Scores = np.ndarray[Any, np.dtype[np.void]]

NAMES: tuple[Probe, ...] = get_args(Probe)

SAMPLED: tuple[Probe, ...] = ("repeat_prefix", "logprobs", "repeat_audit")

OPEN_LOOP_LANES = 8
_FEW_LANES = 4  # a lone lane shows nothing of what happens under load


@dataclass(frozen=True, slots=True)
class Seen:
    """One profile's first timed pass on the stock server."""

    profile: Profile
    lanes: int  # of a closed loop; OPEN_LOOP_LANES for arrivals
    records: Sequence[Record]
    scores: "Scores | None"  # None where nothing scored


@dataclass(frozen=True, slots=True)
class Material:
    """What probes are made of. speculates: whether the candidate's chunks hold several tokens."""

    seen: tuple[Seen, ...]
    speculates: bool
    seed: int

    @property
    def shape(self) -> Seen:
        """The profile that the probes are driven like: the first with some lanes, else the first."""
        return next((one for one in self.seen if one.lanes >= _FEW_LANES), self.seen[0])

    @property
    def samples(self) -> bool:
        """Whether any profile draws. Where none does, a server is not judged by draws that nobody will ask it for."""
        return any(one.profile.sampling.temperature > 0 for one in self.seen)


class Module(Protocol):
    def requests(self, material: Material) -> list[Request]: ...


def load(name: Probe) -> Module:
    return cast(Module, importlib.import_module(f"{__name__}.{name}"))


def check_names(profiles: Sequence[Profile]) -> None:
    """Scores of probes lie beside those of profiles, under their names. Raises ProfileError."""
    for profile in profiles:
        if profile.name in NAMES:
            raise ProfileError(
                f"A profile is named {profile.name}, and so is a probe of the plan: their scores would overwrite each "
                f"other. Give the profile another name."
            )


def prompts(seen: Seen, count: int) -> list[tuple[str, Prompt]]:
    """(prompt id, prompt) of so many prompts of the pass, over again where it holds fewer; none without token ids.

    As token ids, so that a probe asks what was asked whatever the profile's endpoint and source.
    """
    known = [(record.prompt_id, record.prompt_token_ids) for record in seen.records if record.prompt_token_ids]
    return [
        (prompt_id, Prompt(token_ids=ids)) for prompt_id, ids in (known[i % len(known)] for i in range(count) if known)
    ]


def asked(max_tokens: int, **changes: Any) -> Asked:
    return {"max_tokens": max_tokens, **Sampling().asked(), **changes}


def in_turn(index: int, lanes: int) -> dict[str, Any]:
    """Lane and due time of a closed loop's request: lanes in turn, all at once."""
    return {"lane": index % lanes, "due_s": 0.0 if index < lanes else None}
