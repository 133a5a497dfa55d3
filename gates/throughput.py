"""Rates of passes: tokens and requests a second, arrivals, requests in flight."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates.finding import Estimate
from gates.intervals import Floats, Ints, mean
from loadgen.record import Record

BATCHES = 10
"""Equal spans that a single pass is cut into, to give its rates an interval."""

_NS_PER_S = 1e9

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Timed:
    """What figures need of a timed request, small: a long run has hundreds of thousands. Stamps in nanoseconds."""

    lane: int
    pass_no: int
    due_ns: int | None
    sent_ns: int | None
    end_ns: int | None
    failure: str | None  # its kind
    chunk_ns: Ints
    chunk_tokens: npt.NDArray[np.int32] | None  # None where the wire does not say it of every chunk
    first_tokens: int | None  # of the first chunk, where the wire says at least that
    ambiguous: npt.NDArray[np.bool_]  # a chunk
    tokens: int | None  # received: counted by ids, else by chunk, else as the server's usage says; never by chunks

    @staticmethod
    def of(record: Record) -> "Timed":
        known = None not in record.chunk_tokens
        return Timed(
            lane=record.lane,
            pass_no=record.pass_no,
            due_ns=record.due_ns,
            sent_ns=record.sent_ns,
            end_ns=record.end_ns,
            failure=record.failure.kind if record.failure is not None else None,
            chunk_ns=np.array(record.chunk_ns, np.int64),
            chunk_tokens=np.array(record.chunk_tokens, np.int32) if known else None,
            first_tokens=record.chunk_tokens[0] if record.chunk_tokens else None,
            ambiguous=np.array(record.chunk_ambiguous, np.bool_),
            tokens=_tokens_of(record),
        )


def _tokens_of(record: Record) -> int | None:
    if record.token_ids is not None:
        return len(record.token_ids)
    if record.chunk_tokens and None not in record.chunk_tokens:
        return sum(filter(None, record.chunk_tokens))
    return record.usage.completion_tokens if record.usage is not None else None


Counted = Callable[[list[Timed]], tuple[Span | None, Ints, Floats]]
"""One pass → the span to look at, when something came (ns), and how much."""


def busy_tokens(open_loop: bool) -> Counted:
    """Tokens while every lane was busy, over that time: the rate that gates.speed compares."""

    def counted(records: list[Timed]) -> tuple[Span | None, Ints, Floats]:
        whole = _span(records)
        busy = None if open_loop else _busy(records)
        return (busy or whole), *_token_events(records)

    return counted


def _token_events(records: list[Timed]) -> tuple[Ints, Floats]:
    """Every chunk with its tokens, up to a failure. Where only a reply's total is known it is spread evenly."""
    stamps, weights = [np.empty(0, np.int64)], [np.empty(0)]
    for record in records:
        if len(record.chunk_ns):
            stamps.append(record.chunk_ns)
            if record.chunk_tokens is None:
                weights.append(np.full(len(record.chunk_ns), (record.tokens or 0) / len(record.chunk_ns)))
            else:
                weights.append(record.chunk_tokens.astype(np.float64))
    return np.concatenate(stamps), np.concatenate(weights)


def succeeded_requests(records: list[Timed]) -> tuple[Span | None, Ints, Floats]:
    """Requests that succeeded, over the whole pass, ramp and drain included."""
    ends = [record.end_ns for record in records if record.failure is None and record.end_ns is not None]
    return _span(records), np.asarray(ends, np.int64), np.ones(len(ends))


def _span(records: list[Timed]) -> Span | None:
    """From the first byte of the pass to the end of its last request, failed ones included: they take time too."""
    starts = [record.sent_ns for record in records if record.sent_ns is not None]
    ends = [record.end_ns for record in records if record.end_ns is not None]
    return (min(starts), max(ends)) if starts and ends and max(ends) > min(starts) else None


def _busy(records: list[Timed]) -> Span | None:
    """From the last lane's first send to the first lane's last end; None where no moment had every lane busy."""
    lanes: defaultdict[int, list[Span]] = defaultdict(list)
    for record in records:
        if record.sent_ns is not None and record.end_ns is not None:
            lanes[record.lane].append((record.sent_ns, record.end_ns))
    if not lanes:
        return None
    start = max(min(sent for sent, _ in spans) for spans in lanes.values())
    end = min(max(ended for _, ended in spans) for spans in lanes.values())
    return (start, end) if end > start else None


def rate(passes: list[list[Timed]], counted: Counted, unit: str) -> Estimate | None:
    """Interval: t over the passes' rates; of a single pass, t over the rates of its BATCHES equal spans (batch means).

    None where nothing came.
    """
    rates: list[float] = []
    n, batches = 0.0, np.empty(0)
    for records in passes:
        span, when, amount = counted(records)
        if span is None:
            continue
        seconds = (span[1] - span[0]) / _NS_PER_S
        inside = (when > span[0]) & (when <= span[1])  # what is there at the start was made before it
        rates.append(float(amount[inside].sum()) / seconds)
        n += float(amount[inside].sum())
        edges = np.linspace(0, span[1] - span[0], BATCHES + 1)
        batches = np.histogram(when[inside] - span[0], bins=edges, weights=amount[inside])[0] / (seconds / BATCHES)
    if not n:
        return None
    values = np.asarray(rates) if len(rates) > 1 else batches
    method = "t over passes" if len(rates) > 1 else f"t over {BATCHES} batch means of one pass"
    return mean(values, float(np.mean(rates)), (round(n), unit, method))


def arrival_rate(passes: list[list[Timed]], stamp: str) -> float | None:
    """Arrivals a second: n − 1 gaps over the span of n arrivals, all passes together."""
    gaps, span = 0, 0
    for records in passes:
        stamps = [found for record in records if (found := getattr(record, stamp)) is not None]
        if stamps:
            gaps += len(stamps) - 1
            span += max(stamps) - min(stamps)
    return gaps / (span / _NS_PER_S) if span else None


def in_flight(passes: list[list[Timed]]) -> float | None:
    """Little's law as a count: the sum of the requests' durations over the passes' spans."""
    busy = span = 0
    for records in passes:
        if (found := _span(records)) is not None:
            span += found[1] - found[0]
            busy += sum(r.end_ns - r.sent_ns for r in records if r.end_ns is not None and r.sent_ns is not None)
    return busy / span if span else None
