"""The fields of a run's files. Names are fixed: other programs read them. Missing is None, never 0.

Schema history
1  first version
"""

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1

Phase = Literal["calibrate", "warmup", "timed", "probe"]
Probe = Literal["repeat_prefix", "greedy", "fixed_text", "logprobs", "repeat_audit"]
FailureKind = Literal[
    "connect",
    "tls",
    "connection_reset",
    "stalled",
    "timeout",
    "cancelled",
    "rate_limited",
    "loading",
    "auth",
    "model_not_found",
    "context_too_long",
    "http_status",
    "error_event",
    "error_body",
    "not_a_stream",
    "malformed",
    "empty",
    "truncated",
    "aborted",
]

Setting = Literal[
    "prefix cache",
    "KV cache (tokens)",
    "KV cache block size",
    "KV cache type",
    "share of the memory",
    "most sequences at once",
    "longest sequence",
]
"""What a server may tell of its own set-up."""

SCORED_TOP_K = 20
"""Alternatives kept a position: the reference's likeliest tokens."""

# numpy spells it as a list of tuples; kept as plain data so that importing the vocabulary loads no numpy.
SCORE_DTYPE: list[tuple[str, str] | tuple[str, str, tuple[int]]] = [
    ("request", "u8"),  # the first 16 hex digits of the record's id
    ("position", "i4"),  # 0-based in the record's reply
    ("token_id", "i4"),
    ("logprob", "f4"),  # of the token itself, natural log; NaN where the reference gave none
    ("ids", "i4", (SCORED_TOP_K,)),  # log-probability falling, then id rising; −1 beyond what was given
    ("logprobs", "f4", (SCORED_TOP_K,)),  # −inf beyond what was given
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: FailureKind
    detail: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None  # of the completion's, as the server counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """One emitted token as the server itself scored it."""

    token_id: int | None
    token: str | None
    logprob: float | None
    top: list[tuple[int | None, str | None, float | None]]


Asked = dict[str, Any]
"""max_tokens and every sampling field that was sent, under the names they were sent with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All that was seen of one request. Stamps are nanoseconds on the host's monotonic clock."""

    id: str  # 32 random hex digits, also sent as X-Request-Id
    endpoint: str  # its label
    profile: str
    pass_no: int
    lane: int
    phase: Phase
    probe: Probe | None = None
    prompt_id: str
    asked: Asked
    due_ns: int | None = None  # when the schedule wanted it; None for a lane's later requests
    connect_ns: int | None = None  # spent opening a connection for this request; None where one was open
    sent_ns: int | None = None  # the last byte handed to the socket
    first_byte_ns: int | None = None  # of the response head
    end_ns: int | None = None
    chunk_ns: list[int] = field(default_factory=list)  # one a chunk that carries tokens: its arrival
    chunk_tokens: list[int | None] = field(default_factory=list)  # None where the wire does not say
    chunk_ambiguous: list[bool] = field(default_factory=list)  # another such chunk came in the same read
    status: int | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    text: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    logprobs: list[Logprob] | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    speculation: dict[str, Any] | None = None  # the engine's own figures
    flags: list[str] = field(default_factory=list)
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The first line of every records file: how this host's clocks stood to each other."""

    host: str
    boot_id: str | None  # None where the system has none
    monotonic_ns: int
    realtime_ns: int
    error_ns: int  # how long reading the two clocks took
    stamps: Literal["kernel", "read", "virtual"]

    def shift_ns(self, onto: "Anchor") -> int:
        """To be added to stamps of this host's clock to have them on the other's; 0 where the two read one clock.

        As exact as the two hosts' realtime clocks agree.
        """
        one_boot = self.boot_id == onto.boot_id and (self.boot_id is not None or self.host == onto.host)
        return 0 if one_boot else (self.realtime_ns - self.monotonic_ns) - (onto.realtime_ns - onto.monotonic_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """One line of telemetry.jsonl: server counters, calibration or the client's own lateness, at one moment.

    kind "sample": gauges while a pass runs. kind "border": counters at a pass's edge, the server drained.
    kind "calibration": how busy's lanes were found. kind "client": the client's own lateness over a pass.
    kind "memory": device or process memory. kind "engine": figures an engine reports of itself.
    """

    kind: Literal["sample", "border", "calibration", "client", "memory", "engine"]
    at_ns: int
    endpoint: str | None
    profile: str | None
    pass_no: int | None
    edge: Literal["start", "end"] | None = None
    values: dict[str, Any]
