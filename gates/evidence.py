"""What is judged: a comparison as arrays, of what was received, what was scored, what was left out and why."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gates import sampling
from gates.oracles import Told
from gates.probes import NOTHING, Probed, Side
from gates.scored import Ints, Scored
from loadgen.record import FailureKind, Probe, Run, Telemetry

Role = Literal["stock", "candidate"]
Key = tuple[str, str, int]
"""(endpoint's label, profile, pass number)."""


class NotComparable(Exception):
    """The run or runs do not hold a stock and a candidate."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What gates need of one timed request. Stamps are monotonic nanoseconds of the client."""

    request: int  # the key of its scores: the first 16 hex digits of its id
    prompt_id: str
    prompt: int | None  # hash of its token ids; None where the server did not return them
    lane: int
    sent_ns: int | None  # None where nothing was sent
    end_ns: int | None
    chunk_ns: Ints
    chunk_tokens: Ints | None  # None where the wire does not say for every chunk
    tokens: int | None  # received; None where neither ids nor usage came
    failure: FailureKind | None
    stopped: bool = False  # by itself: finish_reason "stop"
    flags: tuple[str, ...] = ()  # what the client noted of it


@dataclass(frozen=True, slots=True)
class Pass:
    """One drained pass of one endpoint; replies in launch order."""

    profile: str
    pass_no: int
    replies: list[Reply]
    scored: Scored
    start: dict[str, Any]  # the server's counters at the borders; {} where unknown
    end: dict[str, Any]
    law: sampling.Law | None = None  # what was sampled from; None: the reference's own, or one that is not known
    oracles: Mapping[str, Told] = field(default_factory=dict)  # by name; none of one that has not scored this pass


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Arm:
    """All drained passes of one endpoint, by pass number, then in the order of the profiles."""

    role: Role
    label: str
    passes: list[Pass]
    telemetry: list[Telemetry]  # without samples
    eos: frozenset[int] = frozenset()  # ids that end a reply, as stock's show; empty where they do not
    probes: Mapping[Side, Probed] = field(default_factory=dict)
    oracles: tuple[str, ...] = ()  # all that scored any pass of the comparison

    def of(self, profile: str | None) -> list[Pass]:
        """Passes of one profile, or all of them (None)."""
        return [one for one in self.passes if profile in (None, one.profile)]

    def probed(self, kind: Probe) -> Probed:
        """Nothing where the run has no such probes of this endpoint."""
        return self.probes.get((self.label, kind), NOTHING)

    def values(self, kind: str) -> list[dict[str, Any]]:
        return [line.values for line in self.telemetry if line.kind == kind]


@dataclass(frozen=True, slots=True)
class Evidence:
    stock: Arm
    candidate: Arm
    profiles: list[str]  # as asked
    open_loop: frozenset[str]  # profiles driven by arrivals
    runs: list[Run]
    ended: bool  # driving is done, and nothing that was asked for is missing
    whole: bool  # nothing is missing so far: ended, or looked at between two passes
    paired: bool  # one prompt_id is one prompt on both endpoints
    warnings: list[str]
    same_prompts: bool = True  # no prompt is known to have reached the two as different token ids
    by_text: frozenset[str] = frozenset()  # profiles scored by both servers' re-tokenized text: no law holds for them

    @property
    def arms(self) -> tuple[Arm, Arm]:
        return self.stock, self.candidate

    @property
    def looks(self) -> int:
        """How often one can have looked: after each pass, drained. At least 1."""
        return max(1, len({one.pass_no for one in self.candidate.passes}))

    def sampling(self, profile: str) -> list[tuple[dict[str, Any], str]]:
        """(what was asked for, dialect) of stock and of the candidate; empty where there are no runs."""
        ends = zip((self.runs[0], self.runs[-1]), self.arms, strict=True) if self.runs else ()
        return [sampling_of(run, profile, arm.label) for run, arm in ends]

    def pairs(self, profile: str | None) -> Iterator[tuple[Pass, Pass]]:
        """(stock's, candidate's) passes that have one profile and one number."""
        found = {(one.profile, one.pass_no): one for one in self.stock.of(profile)}
        for one in self.candidate.of(profile):
            if (one.profile, one.pass_no) in found:
                yield found[one.profile, one.pass_no], one


def sampling_of(run: Run, profile: str, label: str) -> tuple[dict[str, Any], str]:
    """What the run asked for, {} where it does not say, and the dialect of the endpoint, vllm where it does not."""
    asked = run.asked.get("profiles", {}).get(profile, {}).get("sampling") or {}
    return asked, run.asked.get("endpoints", {}).get(label, {}).get("dialect") or "vllm"
