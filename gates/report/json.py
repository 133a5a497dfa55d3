"""One JSON object, ASCII throughout: what the other formats show, unrounded."""

from gates.report import Report
from gates.report._harmless import ascii_json


def render(report: Report) -> str:
    content = {
        "run": str(report.run.path),
        "complete": report.run.complete,
        "asked": report.facts,
        "verdict": None if report.verdict is None else report.verdict.as_json(),
        "summary": report.summary.model_dump(),
        "contest": None if report.contest is None else report.contest.model_dump(exclude_unset=True),
    }
    return ascii_json(content)
