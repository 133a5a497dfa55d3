"""The checks: one file each, the file's name is its key.

A check's module has
    Settings     a frozen pydantic model: what a plan may say of it
    SEQUENCES    how many residual sequences it spends level on
    P_VALUES     how many p-values it spends level on
    PROBES       the probes that feed it; left out where the timed passes do
    check(evidence, settings, terms) -> Checked
"""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from gates.evidence import Evidence
from gates.finding import Finding
from loadgen.record import Probe


class CheckSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Levels:
    """Error levels of one residual sequence."""

    reject: float  # against its null
    gap: float  # of the difference to stock
    outside: float  # of lying wholly outside its margin


@dataclass(frozen=True, slots=True)
class Terms:
    """What a plan and the evidence leave to one check."""

    required: bool
    pooled: Levels
    profile: Levels
    p_value: float  # for one p-value at this look
    equivalent: float  # coverage of the intervals that equivalence rests on
    replies: int  # fewer say nothing of how replies differ
    profile_replies: int
    suspects: frozenset[str | None] = frozenset()  # profiles (None: all together) in which the e-process rejects
    excused: bool = True  # what it looks like is bounded by the margins


@dataclass(frozen=True, slots=True)
class Checked:
    findings: list[Finding]  # the pooled one first
    needs_tokens: int | None = None  # further scored tokens that would settle it; None where tokens would not


class Check(Protocol):
    """Satisfied by a module."""

    Settings: type[CheckSettings]
    SEQUENCES: int
    P_VALUES: int

    # A module's function takes its own Settings; a plan hands each check what that check has validated.
    def check(self, evidence: Evidence, settings: CheckSettings, terms: Terms, /) -> Checked: ...


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Check:
    """The check of that name. Raises ModuleNotFoundError where there is none: ask names() first."""
    module: Check = importlib.import_module(f"{__name__}.{name}")
    return module


def probes(name: str) -> tuple[Probe, ...]:
    """What the check of that name needs beside the timed passes."""
    found: tuple[Probe, ...] = getattr(load(name), "PROBES", ())
    return found


def without_data(check: str, terms: Terms, why: str) -> Checked:
    finding = Finding(check=check, required=terms.required, outcome="undecided", missing=why, says=f"no data: {why}")
    return Checked([finding])
