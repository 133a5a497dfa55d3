"""What one request asks of the engine, and how far it has come."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from servers.sim.sampling import Sampling

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request in tokens. max_tokens 0 computes the prompt and samples nothing."""

    prompt: list[int]
    max_tokens: int
    min_tokens: int = 0  # no end and no stop string before
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None  # None: draws come from the engine's own generator


class Text:
    """A reply's text as it may be shown: what could still become a stop string is held back."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._hold = max(map(len, stops), default=1) - 1
        self._held = ""
        self._armed_from = 0  # a stop string may begin here in what is held, and not before

    def push(self, piece: str, armed: bool) -> str | None:
        """Adds a token's text; the stop string that is now complete, if any, is cut off with what follows it."""
        self._held += piece
        if not armed:
            self._armed_from = len(self._held)
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop, self._armed_from)) >= 0]
        if not found:
            return None
        at, stop = min(found)
        self._held = self._held[:at]
        return stop

    def release(self, ended: bool) -> str:
        keep = 0 if ended else self._hold
        cut = max(0, len(self._held) - keep)
        shown, self._held = self._held[:cut], self._held[cut:]
        self._armed_from = max(0, self._armed_from - cut)
        return shown


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine. Compared by identity."""

    job: Job
    arrival_ns: int
    state: int  # hash of prompt and reply so far
    rng: np.random.Generator
    text: Text
    tokens: list[int] = field(default_factory=list)  # the reply; may run ahead of what has been delivered
    blocks: int = 0  # of the KV cache, held
    prefilled: bool = False  # its prompt has been computed once, and counted
    finish_reason: FinishReason | None = None  # None while it runs

    @property
    def length(self) -> int:
        return len(self.job.prompt) + len(self.tokens)

    @property
    def left(self) -> int:
        return self.job.max_tokens - len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What one sequence gets of one step. rows[i] is the row of the model that tokens[i] was drawn from."""

    sequence: Sequence
    tokens: list[int]
    rows: list[int]
    text: str
    finish_reason: FinishReason | None
    stop_reason: str | None  # the stop string, where one ended it
    drafted: int
    accepted: int
