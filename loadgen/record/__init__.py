"""The vocabulary of the run directory: what loadgen writes and gates read."""

from loadgen.record.fields import (
    SCORE_DTYPE,
    SCORED_TOP_K,
    Anchor,
    Asked,
    Failure,
    FailureKind,
    Logprob,
    Phase,
    Probe,
    Record,
    Setting,
    Telemetry,
    Usage,
)
from loadgen.record.home import available, find, nearest
from loadgen.record.reader import Broken, Run
from loadgen.record.writer import RunExists, RunWriter

__all__ = [
    "SCORED_TOP_K",
    "SCORE_DTYPE",
    "Anchor",
    "Asked",
    "Broken",
    "Failure",
    "FailureKind",
    "Logprob",
    "Phase",
    "Probe",
    "Record",
    "Run",
    "RunExists",
    "RunWriter",
    "Setting",
    "Telemetry",
    "Usage",
    "available",
    "find",
    "nearest",
]
