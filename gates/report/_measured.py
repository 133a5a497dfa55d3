"""What an endpoint delivered, in words and tables."""

from gates.finding import Estimate
from gates.latency import Load, Quantiles, Summary
from gates.report._blocks import Block, Column, Heading, Lines, Table
from gates.report._figures import NONE, count, figure, milliseconds, percent, span

_QUANTILES = ("p50", "p90", "p99")


def loads(summary: Summary) -> list[Block]:
    """A heading, what was asked and delivered, and the latencies of every endpoint × profile."""
    if not summary.loads:
        return [Lines(["No timed request has ended."])]
    return [block for load in summary.loads for block in _load(load)]


def rate(load: Load | None) -> str:
    found = load.output_tokens_per_s if load is not None else None
    return NONE if found is None else f"{figure(found.value)} tok/s"


def quantile(quantiles: Quantiles | None, name: str) -> float | None:
    found = quantiles.get(name) if quantiles is not None else None
    return None if found is None else found.value


def _load(load: Load) -> list[Block]:
    lanes = "open loop" if load.lanes is None else count(load.lanes, "lane")
    heading = Heading(f"{load.profile}   {load.endpoint}   {lanes}   {count(load.passes, 'pass')}")
    return [heading, Lines([_requests(load), *_failures(load), *_delivered(load)]), _latencies(load), *_ambiguous(load)]


def _requests(load: Load) -> str:
    asked = "" if load.asked is None else f" of {load.asked:,} asked"
    tokens = "" if load.tokens is None else f", {count(load.tokens, 'token')} received"
    return f"{count(load.ended, 'request')}{asked} ended, {load.succeeded:,} succeeded{tokens}"


def _failures(load: Load) -> list[str]:
    if not load.failed:
        return []
    kinds = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in load.failed.items())
    return [f"failed: {kinds} (counted, and in no latency below)"]


def _delivered(load: Load) -> list[str]:
    if load.asked_per_s is not None:
        late = milliseconds(quantile(load.lateness_ms, "p99"))
        return [
            f"asked for {figure(load.asked_per_s)} requests/s, sent {figure(load.sent_per_s)}; late by {late} at p99"
        ]
    return [] if load.in_flight is None else [f"{figure(load.in_flight)} requests in flight on average"]


def _latencies(load: Load) -> Table:
    """Each quantile with its interval; rates beneath, in the first column of figures."""
    columns = [Column("")]
    for name in _QUANTILES:
        columns += [Column(name, right=True), Column("95 %")]
    figures = [
        ("TTFT", load.ttft_ms),
        ("  a lane's first", load.ttft_first_ms),
        ("  its later ones", load.ttft_later_ms),
        ("TTFT from due", load.ttft_from_due_ms),
        ("ITL", load.itl_ms),
        ("TPOT", load.tpot_ms),
        ("end to end", load.e2e_ms),
    ]
    rows = [_quantile_row(name, found) for name, found in figures if found is not None or name in ("TTFT", "ITL")]
    rates = [("output tokens/s", load.output_tokens_per_s), ("requests/s", load.requests_per_s)]
    return Table(columns, rows + [_rate_row(name, found) for name, found in rates])


def _quantile_row(name: str, quantiles: Quantiles | None) -> list[str]:
    row = [name]
    for quantile in _QUANTILES:
        found = None if quantiles is None else quantiles.get(quantile)
        row += [NONE, ""] if found is None else [milliseconds(found.value), _interval(found)]
    return row


def _interval(found: Estimate) -> str:
    if found.low is None and found.high is None:
        return ""
    low, high = milliseconds(found.low), milliseconds(found.high)
    return f"{low.removesuffix(' ms')} … {high.removesuffix(' ms')}"


def _rate_row(name: str, found: Estimate | None) -> list[str]:
    empty = [""] * (2 * len(_QUANTILES) - 2)
    return (
        [name, figure(None), "", *empty]
        if found is None
        else [name, figure(found.value), span(found.low, found.high), *empty]
    )


def _ambiguous(load: Load) -> list[Block]:
    lines = []
    if load.ambiguous_gaps:
        lines.append(
            f"{percent(load.ambiguous_gaps)} of the gaps lie inside one read of the socket: their length is lost"
        )
    found = load.output_tokens_per_s or load.requests_per_s
    if found is not None:
        lines.append(f"intervals of quantiles: order statistics, of ITL clustered by reply; of rates: {found.method}")
    return [Lines(lines)] if lines else []
