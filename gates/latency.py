"""The summary of a run: latency and throughput of every endpoint under every profile, each with its interval.

Failed requests are counted and never timed: a request that was refused is no fast request. Where nothing succeeded
there is no figure (None). Chunks are not tokens: ITL lies between chunks that carry tokens, TPOT divides by tokens.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from gates.finding import Estimate
from gates.intervals import Floats, clustered, order_statistic
from gates.throughput import Timed, arrival_rate, busy_tokens, in_flight, rate, succeeded_requests
from loadgen.record import Run

_NS_PER_MS = 1e6

Quantiles = dict[str, Estimate]
""" "p50", "p90", "p99" → milliseconds."""


class Load(BaseModel):
    """What one endpoint did under one profile, over its timed passes."""

    model_config = ConfigDict(frozen=True)

    endpoint: str
    profile: str
    passes: int
    lanes: int | None  # that sent anything; None where requests arrived by a clock (open loop)
    asked: int | None  # requests that the profile asks for in all passes; None where run.json does not say
    ended: int
    succeeded: int
    failed: dict[str, int]  # failure kind → requests
    tokens: int | None  # received by requests that succeeded; None where a reply's count is unknown
    ttft_ms: Quantiles | None  # first chunk with tokens, from the last byte sent
    ttft_first_ms: Quantiles | None  # of each lane's first request in a pass: all lanes start at about one moment
    ttft_later_ms: Quantiles | None  # of the others. Both None in an open loop, and where one of the two is empty
    ttft_from_due_ms: Quantiles | None  # the same from when the schedule wanted the request; None in a closed loop
    itl_ms: Quantiles | None
    tpot_ms: Quantiles | None  # of a reply: span after its first chunk, over the tokens that came in it
    e2e_ms: Quantiles | None  # from the last byte sent to the end
    output_tokens_per_s: Estimate | None  # while every lane was busy, as in gates.speed
    requests_per_s: Estimate | None  # that succeeded, over whole passes
    asked_per_s: float | None  # requests the schedule wanted, over its own span; None in a closed loop
    sent_per_s: float | None  # requests sent, over the span of sending; None in a closed loop
    lateness_ms: Quantiles | None  # sent − due; None in a closed loop
    in_flight: float | None  # requests under way, averaged over the passes
    ambiguous_gaps: float | None  # share of ITL gaps inside one read of the socket; None where there are no gaps


class Summary(BaseModel):
    model_config = ConfigDict(frozen=True)

    complete: bool  # driving ended by itself
    loads: list[Load]

    def of(self, endpoint: str, profile: str) -> Load | None:
        return next((load for load in self.loads if (load.endpoint, load.profile) == (endpoint, profile)), None)


def summarise(run: Run) -> Summary:
    """One Load for every endpoint × profile that sent timed requests, in the order of run.json.

    Raises loadgen.record.Broken where a file of the run cannot be read.
    """
    records: dict[tuple[str, str], list[Timed]] = {
        (endpoint, profile): [] for profile in run.asked.get("profiles", {}) for endpoint in run.asked["endpoints"]
    }
    for record in run.records():
        if record.phase == "timed" and record.probe is None:
            records.setdefault((record.endpoint, record.profile), []).append(Timed.of(record))
    loads = [_load(key, found, run.asked) for key, found in records.items() if found]
    return Summary(complete=run.complete, loads=loads)


def summarise_two(stock: Run, candidate: Run) -> Summary:
    """Of two runs of one endpoint each, under the names of their roles. Raises as summarise does."""
    sides = {"stock": summarise(stock), "candidate": summarise(candidate)}
    return Summary(
        complete=all(side.complete for side in sides.values()),
        loads=[load.model_copy(update={"endpoint": role}) for role, side in sides.items() for load in side.loads],
    )


def _load(key: tuple[str, str], records: list[Timed], asked: dict[str, Any]) -> Load:
    endpoint, name = key
    profile = asked.get("profiles", {}).get(name, {})
    good = [record for record in records if record.failure is None]
    passes = _by_pass(records)
    open_loop = bool(profile.get("arrivals"))
    due = [record for record in records if open_loop and record.due_ns is not None]
    counts = [record.tokens for record in good]
    countable = bool(good) and None not in counts
    gaps, inside = _gaps(good)
    first, later = ([], []) if open_loop else _waves(passes)
    return Load(
        endpoint=endpoint,
        profile=name,
        passes=len(passes),
        lanes=None if open_loop else len({record.lane for record in records}),
        asked=_asked(profile, len(passes) if asked.get("until_decided") else asked.get("passes"), records),
        ended=len(records),
        succeeded=len(good),
        failed=dict(Counter(record.failure for record in records if record.failure is not None)),
        tokens=sum(filter(None, counts)) if countable else None,
        ttft_ms=_over_requests(good, _ttft),
        ttft_first_ms=_over_requests(first, _ttft) if later else None,
        ttft_later_ms=_over_requests(later, _ttft) if first else None,
        ttft_from_due_ms=_over_requests([record for record in due if record.failure is None], _ttft_from_due),
        itl_ms=_over_gaps(gaps),
        tpot_ms=_over_requests(good, tpot_ms),
        e2e_ms=_over_requests(good, _e2e),
        output_tokens_per_s=None
        if None in counts or not good
        else rate(passes, busy_tokens(open_loop), "output tokens"),
        requests_per_s=rate(passes, succeeded_requests, "requests"),
        asked_per_s=arrival_rate(_by_pass(due), "due_ns"),
        sent_per_s=arrival_rate(_by_pass(due), "sent_ns"),
        lateness_ms=_over_requests(due, _lateness),
        in_flight=in_flight(passes),
        ambiguous_gaps=inside / sum(map(len, gaps)) if any(map(len, gaps)) else None,
    )


def _by_pass(records: Iterable[Timed]) -> list[list[Timed]]:
    passes: defaultdict[int, list[Timed]] = defaultdict(list)
    for record in records:
        passes[record.pass_no].append(record)
    return [passes[number] for number in sorted(passes)]


def _waves(passes: list[list[Timed]]) -> tuple[list[Timed], list[Timed]]:
    """(each lane's first request of a pass, the others), those that succeeded."""
    first: list[Timed] = []
    later: list[Timed] = []
    for records in passes:
        seen: set[int] = set()
        for record in sorted((one for one in records if one.sent_ns is not None), key=lambda one: one.sent_ns or 0):
            if record.failure is None:
                (later if record.lane in seen else first).append(record)
            seen.add(record.lane)
    return first, later


def _asked(profile: dict[str, Any], passes: Any, records: list[Timed]) -> int | None:
    if not isinstance(passes, int):
        return None
    lanes = 0 if profile.get("arrivals") else len({record.lane for record in records})
    if isinstance(requests := profile.get("requests"), int):
        return max(requests, lanes) * passes  # no lane is left without a request
    if isinstance(each := profile.get("requests_per_lane"), int):
        return each * lanes * passes
    return None


# What one record says. None where it does not.


def tpot_ms(record: Timed) -> float | None:
    """Span from the first chunk to the last, over the tokens that came after the first chunk."""
    if len(record.chunk_ns) < 2:
        return None
    total, first = record.tokens, record.first_tokens
    # Where the wire does not say how many tokens the first chunk brought, it is taken to be one.
    later = None if total is None else total - (1 if first is None else first)
    span = float(record.chunk_ns[-1] - record.chunk_ns[0])
    return span / later / _NS_PER_MS if later else None


def _ttft(record: Timed) -> float | None:
    if not len(record.chunk_ns) or record.sent_ns is None:
        return None
    return float(record.chunk_ns[0] - record.sent_ns) / _NS_PER_MS


def _ttft_from_due(record: Timed) -> float | None:
    if not len(record.chunk_ns) or record.due_ns is None:
        return None
    return float(record.chunk_ns[0] - record.due_ns) / _NS_PER_MS


def _e2e(record: Timed) -> float | None:
    if record.end_ns is None or record.sent_ns is None:
        return None
    return (record.end_ns - record.sent_ns) / _NS_PER_MS


def _lateness(record: Timed) -> float | None:
    if record.sent_ns is None or record.due_ns is None:
        return None
    return (record.sent_ns - record.due_ns) / _NS_PER_MS


def _gaps(records: list[Timed]) -> tuple[list[Floats], int]:
    """Gaps between chunks, reply by reply in milliseconds, and how many lie inside one read (their length is lost)."""
    gaps, inside = [], 0
    for record in records:
        between_ns, together = np.diff(record.chunk_ns), record.ambiguous
        gaps.append(between_ns / _NS_PER_MS)
        inside += int((together[1:] & together[:-1] & (between_ns == 0)).sum())
    return gaps, inside


# Figures with their intervals.


def _over_requests(records: list[Timed], figure: Callable[[Timed], float | None]) -> Quantiles | None:
    values = np.sort([value for record in records if (value := figure(record)) is not None])
    return {f"p{q}": order_statistic(values, q / 100) for q in (50, 90, 99)} if len(values) else None


def _over_gaps(replies: list[Floats]) -> Quantiles | None:
    replies = [gaps for gaps in replies if len(gaps)]
    if not replies:
        return None
    values = np.concatenate(replies)
    reply = np.repeat(np.arange(len(replies)), [len(gaps) for gaps in replies])
    order = np.argsort(values, kind="stable")
    return {f"p{q}": clustered(values[order], reply[order], q / 100) for q in (50, 90, 99)}
