"""One request as the schedule wants it, before any dialect has given it a body."""

from dataclasses import dataclass
from typing import Literal

from loadgen.prompts import Prompt
from loadgen.record import Asked

Kind = Literal["completions", "chat"]


@dataclass(frozen=True, slots=True)
class Request:
    prompt_id: str  # the same on both endpoints
    prompt: Prompt
    kind: Kind
    asked: Asked  # max_tokens and every sampling field to send
    lane: int  # closed loop: who sends it; open loop: its own index, for every arrival is a client of its own
    due_s: float | None  # seconds from the pass's start; None: as soon as the lane is free
