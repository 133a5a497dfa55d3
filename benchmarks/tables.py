"""The measured clients as tables for a README, and our figures beside their goals."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

HEADINGS = (
    "client",
    "lanes",
    "TTFT error mean / p99 (ms)",
    "chunk error p50 / p99 / max (ms)",
    "ITL sd added (ms)",
    "shared reads",
    "CPU (s)",
    "a chunk / a request (µs)",
    "memory (MB)",
    "start-up (s)",
    "wall (s)",
    "others (cores)",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    says: str
    limit: float
    figure: Callable[[Any], float | None]  # of a run of ours; None: not measured
    start: str | None = None  # holds for this kind of start alone


GOALS = (
    Goal("TTFT error, paced start, mean (ms)", 0.5, lambda row: row.errors.ttft_mean_ms, "paced"),
    Goal("TTFT error, paced start, p99 (ms)", 2.0, lambda row: row.errors.ttft_p99_ms, "paced"),
    Goal("TTFT error, burst start, p99 (ms)", 40.0, lambda row: row.errors.ttft_p99_ms, "burst"),
    Goal("chunk stamp error, p50 (ms)", 0.1, lambda row: row.errors.chunk_p50_ms),
    Goal("chunk stamp error, p99 (ms)", 2.0, lambda row: row.errors.chunk_p99_ms),
    Goal("ITL sd added (ms)", 0.1, lambda row: row.errors.itl_sd_added_ms),
    Goal("CPU a chunk (µs)", 8.0, lambda row: row.costs and row.costs.chunk_us),
    Goal("CPU a request (µs)", 120.0, lambda row: row.costs and row.costs.request_us),
    Goal("memory (MB)", 120.0, lambda row: row.spent.rss_mb),
    Goal("start-up (s)", 0.6, lambda row: row.startup_s),
)
HELP_GOAL_S = 0.15


def document(
    seen: Sequence[Any], clients: Sequence[Any], machine: str, options: argparse.Namespace, help_s: float | None
) -> str:
    """Markdown: what was run on which machine, one row a run, then our goals at the most lanes."""
    versions = ", ".join(f"{client.name} {client.version}" for client in clients)
    asked = (
        f"{options.first_ms:g} ms to the first chunk, {options.gap_ms:g} ms between chunks, {options.chunk_bytes}-byte "
        f"chunks, {options.tokens} a reply, {options.requests_per_lane} requests a lane, {options.start} start"
    )
    ours = [row for row in seen if row.client == "ours"]
    parts = [f"{machine}\n{asked}\n{versions}", table(seen)]
    if ours:
        parts.append(goals(max(ours, key=lambda row: row.load.lanes), options.start, help_s))
    return "\n\n".join(parts)


def table(seen: Sequence[Any]) -> str:
    return _markdown([HEADINGS, *(_cells(row) for row in seen)])


def line(row: Any) -> str:
    """One run, for someone who waits."""
    cells = zip(HEADINGS[2:], _cells(row)[2:], strict=True)
    return f"{row.client} at {row.load.lanes} lanes: " + ", ".join(
        f"{name} {cell}" for name, cell in cells if cell != "–"
    )


def _cells(row: Any) -> tuple[str, ...]:
    held, spent = row.errors, row.spent
    return (
        row.client,
        str(row.load.lanes),
        _numbers(held.ttft_mean_ms, held.ttft_p99_ms),
        _numbers(held.chunk_p50_ms, held.chunk_p99_ms, held.chunk_max_ms),
        _numbers(held.itl_sd_added_ms),
        "–" if held.shared is None else f"{held.shared:.2%}",
        f"{spent.cpu_s:.1f}",
        _numbers(row.costs.chunk_us, row.costs.request_us) if row.costs else "–",
        f"{spent.rss_mb:.0f}",
        f"{row.startup_s:.2f}",
        f"{spent.wall_s:.1f}",
        f"{row.others:.2f}",
    )


def goals(ours: Any, start: str, help_s: float | None) -> str:
    rows: list[tuple[str, ...]] = [("goal", "limit", "measured", "")]
    for goal in GOALS:
        measured = goal.figure(ours)
        if measured is not None and goal.start in (None, start):
            rows.append(_goal(goal.says, goal.limit, measured))
    if help_s is not None:
        rows.append(_goal("`loadgate --help` (s)", HELP_GOAL_S, help_s))
    return f"Goals at {ours.load.lanes} lanes:\n\n" + _markdown(rows)


def _goal(says: str, limit: float, measured: float) -> tuple[str, ...]:
    return says, f"< {limit:g}", _number(measured), "met" if measured < limit else "missed"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _numbers(*values: float | None) -> str:
    return "–" if None in values else " / ".join(_number(value) for value in values if value is not None)


def _number(value: float) -> str:
    """Two digits that say something; whole from 10 up."""
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 10
        else f"{value:.1f}"
        if size >= 1
        else f"{value:.2f}"
        if size >= 0.1
        else f"{value:.3f}"
    )
