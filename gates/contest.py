"""Plan `contest`: judges a recorded result again, and makes a record of a new run by the same rules."""

import math
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gates.contest_rules import Gate, Record, Submission, gates, geometric_mean, medians, reason, sentence, specscore


class NoRecord(Exception):
    """What was given is no contest record."""


class Difference(BaseModel):
    """A field of the record that comes out otherwise."""

    model_config = ConfigDict(frozen=True)

    field: str
    recorded: float | str | bool | None
    recomputed: float | str | bool | None


class Rechecked(BaseModel):
    """A record judged again from its own raw figures."""

    model_config = ConfigDict(frozen=True)

    reproduced: bool
    medians: dict[str, float]
    specscore: float | None  # 0 where a gate failed
    score: float | None
    reason: str | None
    sentence: str
    gates: list[Gate]
    differences: list[Difference]


def recheck(record: dict[str, Any]) -> Rechecked:
    """Judges a record again: medians, SpecScore, every gate and the reason.

    Takes the record itself, or a file's whole content {"submission", "record"}. Raises NoRecord for anything else.
    """
    submission, judged = parse(record)
    differences = [found for found in _compared(judged, submission) if found.recorded != found.recomputed]
    score = specscore(judged)
    return Rechecked(
        reproduced=not differences,
        medians=medians(judged),
        specscore=score,
        score=score,
        reason=reason(judged),
        sentence=sentence(judged),
        gates=gates(judged),
        differences=differences,
    )


def parse(content: Any) -> tuple[Submission | None, Record]:
    """A record with what was submitted, where the content says. Raises NoRecord, naming the first field amiss."""
    if not isinstance(content, dict):
        raise NoRecord(f"no contest record: it holds a {type(content).__name__}, not an object with a record's fields.")
    whole = {"record": content} if "ratios" in content else content
    try:
        submission = whole.get("submission")
        judged = Record.model_validate(whole.get("record"), strict=True)
        return (Submission.model_validate(submission) if submission is not None else None), judged
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "record"
        raise NoRecord(
            f"no contest record: {where}: {first['msg']}. A record has the fields {', '.join(Record.model_fields)}, "
            'alone or under "record" beside "submission".'
        ) from None


def _compared(record: Record, submission: Submission | None) -> list[Difference]:
    """Each derived field as recorded and as recomputed."""
    found = medians(record)
    pairs: list[tuple[str, float | str | bool | None, float | str | bool | None]] = [
        (f"ratios.{name}.ratio", ratio.ratio, found.get(name)) for name, ratio in record.ratios.items()
    ]
    score = specscore(record)
    # Whether a failed submission's own speed is kept in `specscore` (and only `score` is 0) the three records leave
    # open: in the one that failed both are 0. Either is taken.
    kept = found and record.specscore == geometric_mean(found)
    pairs += [
        ("specscore", record.specscore, record.specscore if score == 0 and kept else score),
        ("score", record.score, score),
        ("reason", record.reason, reason(record)),
    ]
    if record.memory is not None:
        pairs.append(("memory.ok", record.memory.ok, record.memory.peak_mib <= record.memory.allowed_mib))
    for name, gap in (("likelihood", record.likelihood), ("argmax", record.argmax)):
        if gap is not None:
            again = gap.candidate - gap.stock
            # The gap is the judge's own figure; whether it subtracted before or after averaging moves the last digits.
            pairs.append((f"{name}.gap", gap.gap, gap.gap if math.isclose(gap.gap, again, abs_tol=1e-9) else again))
    if submission is not None and submission.page_verdict is not None:
        pairs.append(("submission.page_verdict", submission.page_verdict, sentence(record)))
    return [Difference(field=field, recorded=recorded, recomputed=again) for field, recorded, again in pairs]


def as_json(record: Record) -> dict[str, Any]:
    """A contest file's `record`: what was not measured is null, `paired` and `replies` are there only where known."""
    return record.model_dump(exclude_unset=True)


class SubmissionError(Exception):
    """The file given by --submission cannot be used."""


def load_submission(path: Path) -> Submission:
    """Reads title, model, track and, where given, kind, speculator, engine. Raises SubmissionError."""
    allowed = [name for name in Submission.model_fields if name != "page_verdict"]
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        submission = Submission.model_validate(content)
    except OSError as error:
        raise SubmissionError(f"{path}: cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SubmissionError(f"{path} is no TOML: {error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SubmissionError(
            f"{path}: {where}: {first['msg']}. A submission has title, model and track, and may have "
            f"{', '.join(name for name in allowed if name not in ('title', 'model', 'track'))}; all are texts."
        ) from None
    if submission.page_verdict is not None:
        raise SubmissionError(f"{path}: page_verdict is what the judge writes. Leave it out.")
    return submission
