"""The page of a run or a comparison: which blocks, in what words. Laid out by the formats."""

import json
import math

from gates.finding import Finding, Verdict
from gates.latency import Load
from gates.report import Report, _contest, _measured
from gates.report._blocks import Block, Column, Heading, Lines, Table
from gates.report._figures import NONE, about, count, estimate, gib, milliseconds, percent, signed, times

_RESIDUALS = ("likelihood", "first_choice")
_MARKS = {"equivalent": "ok", "passed": "ok", "different": "✗", "failed": "✗"}


def page(report: Report) -> list[Block]:
    if report.contest is not None:
        return [
            *_contest.page(report.submission, report.contest),
            *_endpoints(report),
            *_notes(report),
            _contest.appendix(report.submission, report.contest),
        ]
    if report.verdict is None:
        return [*_endpoints(report), *_measured.loads(report.summary), *_notes(report)]
    return [
        *_endpoints(report),
        _headline(report.verdict),
        *_speeds(report, report.verdict),
        _checks(report.verdict),
        *_notes(report),
    ]


def _endpoints(report: Report) -> list[Block]:
    """Where each server is and what it says of itself, one a line."""
    rows = []
    for label, facts in report.facts.get("endpoints", {}).items():
        served = facts.get("served") or {}
        engine = " ".join(str(part) for part in (facts.get("dialect"), served.get("version")) if part is not None)
        body = facts.get("extra_body")
        added = f"sent with {json.dumps(body)}" if body else ""
        rows.append([label, str(facts.get("url", NONE)), str(facts.get("model", NONE)), engine, added])
    columns = 5 if any(row[-1] for row in rows) else 4
    return [Table([Column("")] * columns, [row[:columns] for row in rows])] if rows else []


def _headline(verdict: Verdict) -> Block:
    parts = [verdict.outcome.upper()]
    score = verdict.specscore
    if score is not None:
        level = "" if score.low is None else f"; 95 %: {score.low:.2f} … {score.high:.2f}"
        faster = "faster" if score.value >= 1 else "as fast"
        parts.append(f"{times(score.value)} {faster} (SpecScore{level})")
    if verdict.diagnosis is not None:
        parts.append(verdict.diagnosis)
    if verdict.needs is not None:
        parts.append(f"about {about(verdict.needs.tokens)} more scored tokens{_in_passes(verdict)} to go")
    if verdict.interim:
        parts.append("so far: the run is not whole")
    return Heading("   ".join(parts), 1)


def _in_passes(verdict: Verdict) -> str:
    """The same in passes like those that were driven, which is what one can ask for."""
    passes = max((len(speed.passes) for speed in verdict.speed.values()), default=0)
    scored = _scored(verdict)
    if verdict.needs is None or not passes or not scored:
        return ""
    more = math.ceil(verdict.needs.tokens * passes / scored)
    return f" ({count(more, 'pass')})"


def _scored(verdict: Verdict) -> int | None:
    """Scored tokens of the candidate that the verdict rests on."""
    return max((f.estimate.n for f in verdict.findings if f.check == "likelihood" and f.estimate), default=None)


def _speeds(report: Report, verdict: Verdict) -> list[Block]:
    """One row a profile: what each side delivered, the ratio, and what a user would feel."""
    roles = report.facts.get("roles") or {}
    stock, candidate = (str(roles.get(role, role)) for role in ("stock", "candidate"))
    heads = ["lanes", stock, candidate, "speedup", "95 %", "tokens a step", "TTFT p50", "ITL p99"]
    names = list(dict.fromkeys([*verdict.speed, *(load.profile for load in report.summary.loads)]))
    rows = [
        _speed_row(name, verdict, report.summary.of(stock, name), report.summary.of(candidate, name)) for name in names
    ]
    columns = [Column(""), *(Column(head, right=True) for head in heads)]
    return [Table(columns, rows)] if rows else []


def _speed_row(name: str, verdict: Verdict, stock: Load | None, candidate: Load | None) -> list[str]:
    speed = verdict.speed.get(name)
    step = verdict.acceptance.get(name)
    return [
        name,
        NONE if stock is None or stock.lanes is None else f"{stock.lanes:,}",
        *(_measured.rate(load) for load in (stock, candidate)),
        NONE if speed is None else times(speed.ratio),
        NONE if speed is None or speed.low is None or speed.high is None else f"{speed.low:.2f} … {speed.high:.2f}",
        NONE if step is None else f"{step:.2f}",
        _change(*(_measured.quantile(load.ttft_ms if load else None, "p50") for load in (stock, candidate))),
        _change(*(_measured.quantile(load.itl_ms if load else None, "p99") for load in (stock, candidate))),
    ]


def _change(before: float | None, after: float | None) -> str:
    if before is None and after is None:
        return NONE
    return f"{milliseconds(before).removesuffix(' ms')} → {milliseconds(after)}"


def _checks(verdict: Verdict) -> Table:
    """Pooled findings, and of single profiles those that are not within the margin."""
    columns = [Column("check"), Column("estimate"), Column("interval"), Column("margin"), Column(""), Column("meaning")]
    shown = [found for found in verdict.findings if found.profile is None or _stands_out(found)]
    return Table(columns, [_check_row(found) for found in shown])


def _stands_out(finding: Finding) -> bool:
    return finding.outcome == "different" or (finding.outcome == "undecided" and finding.required)


def _check_row(finding: Finding) -> list[str]:
    where = [finding.profile, finding.stratum]
    name = ", ".join([finding.check.replace("_", " "), *(part for part in where if part is not None)])
    value, interval = estimate(finding.estimate)
    return [name, value, interval, _margin(finding), _mark(finding), finding.says]


def _margin(finding: Finding) -> str:
    unit = finding.estimate.unit if finding.estimate is not None else ""
    if finding.margin is None:
        return NONE
    if unit == "MiB":
        return f"≤{gib(finding.margin)}"
    if unit == "share of requests":
        return f"≤{percent(finding.margin)}"
    return f"±{finding.margin:.2g}"


def _mark(finding: Finding) -> str:
    if finding.outcome == "undecided" and not finding.required:
        return ""
    return _MARKS.get(finding.outcome, "?")


def _notes(report: Report) -> list[Block]:
    """What the verdict rests on, what to be wary of, and where it all lies."""
    lines = []
    if report.verdict is not None:
        rests_on = _rests_on(report.verdict) if report.contest is None else []
        lines += [*rests_on, *(f"note: {warning}" for warning in report.verdict.warnings)]
    elif not report.run.complete:
        lines.append("note: the run did not end by itself; what had ended is shown.")
    lines.append(" ".join(["run:", str(report.run.path), *_plan(report)]))
    return [Lines(lines)]


def _plan(report: Report) -> list[str]:
    return [] if report.verdict is None else [f"  plan: {report.verdict.plan}"]


def _rests_on(verdict: Verdict) -> list[str]:
    scored = _scored(verdict)
    if scored is None:
        return ["No token of the candidate was scored."]
    off = [found for found in verdict.findings if found.profile is None and _off_zero(found)]
    stock = (
        "clean"
        if not off
        else "off zero in "
        + ", ".join(
            f"{found.check.replace('_', ' ')} ({signed(found.stock.value)})" for found in off if found.stock is not None
        )
    )
    return [
        f"{count(scored, 'token')} scored; the stock server's own replies under the same checks: {stock}.",
        *_levels(verdict),
    ]


def _levels(verdict: Verdict) -> list[str]:
    """What the intervals of the residual checks promise; a rejection asks for the plan's own level."""
    levels = {f.estimate.level for f in verdict.findings if f.check in _RESIDUALS and f.estimate is not None}
    return [
        f"intervals of {' and '.join(name.replace('_', ' ') for name in _RESIDUALS)}: {level:.0%}, however often one "
        "looks; DIFFERENT asks for the plan's stricter level."
        for level in sorted(levels)
    ]


def _off_zero(finding: Finding) -> bool:
    stock = finding.stock
    if stock is None or stock.low is None or stock.high is None or finding.check not in _RESIDUALS:
        return False
    return not stock.low <= 0 <= stock.high
