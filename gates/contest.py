"""Plan `contest`: judges a recorded result again, and makes a record of a new run by the same rules."""

import math
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gates import contest_measure, digests, speed
from gates.contest_rules import (
    Gap,
    Gate,
    Length,
    Record,
    Submission,
    Z,
    gates,
    geometric_mean,
    medians,
    outside,
    reason,
    sentence,
    specscore,
)
from gates.evidence import Evidence
from gates.finding import Estimate, Finding, Outcome, Score, Speed, Verdict
from gates.plan import Plan, PlanError

LEVEL = 0.95


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


def record(evidence: Evidence, plan: Plan) -> Record:
    """The contest's record of a new run. Fidelity and greedy agreement need probes and are None without.

    Raises PlanError where the plan holds no contest rules, or unknown ones.
    """
    rules = _rules(plan)
    measured = Record(
        ratios=contest_measure.ratios(evidence),
        specscore=None,
        greedy_agreement=None,
        likelihood=contest_measure.likelihood(evidence),
        argmax=contest_measure.argmax(evidence),
        fidelity=None,
        lengths=contest_measure.lengths(evidence),
        memory=contest_measure.memory(evidence, rules),
        acceptance=contest_measure.acceptance(evidence),
        limits=rules.limits(),
        reason=None,
        score=None,
    )
    score = specscore(measured)
    return measured.model_copy(update={"specscore": score, "score": score, "reason": reason(measured)})


def _rules(plan: Plan) -> contest_measure.Rules:
    if plan.contest is None:
        raise PlanError(f"Plan {plan.name} has no table [contest], which holds a contest's limits.")
    try:
        return contest_measure.Rules.model_validate(plan.contest)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        allowed = ", ".join(contest_measure.Rules.model_fields)
        raise PlanError(f"Plan {plan.name}: contest.{where}: {first['msg']}. It may hold {allowed}.") from None


def judge(evidence: Evidence, plan: Plan) -> Verdict:
    """The verdict of record(evidence, plan): passed or failed; undecided where the run is not whole or has no speed.

    Raises PlanError as record does.
    """
    judged = record(evidence, plan)
    found = gates(judged)
    absent = [gate.check.replace("_", " ") for gate in found if gate.outcome == "n/a"]
    warnings = [*evidence.warnings, *speed.measure(evidence).warnings]
    if absent:
        warnings.append(
            f"Counted as passed without data or limit, as the contest's rules have it: {', '.join(absent)}."
        )
    return Verdict(
        plan=plan.name,
        inputs=digests.of(evidence.runs),
        outcome=_outcome(judged, evidence),
        interim=not evidence.ended,
        specscore=None if judged.specscore is None else Score(value=judged.specscore, low=None, high=None),
        speed={
            name: Speed(ratio=ratio.ratio, low=None, high=None, passes=ratio.passes)
            for name, ratio in judged.ratios.items()
            if ratio.ratio is not None
        },
        acceptance=judged.acceptance,
        diagnosis=judged.reason,
        needs=None,
        warnings=warnings,
        findings=[finding for gate in found for finding in _findings(gate, judged, evidence)],
    )


def _outcome(judged: Record, evidence: Evidence) -> Outcome:
    if judged.reason is not None:
        return "failed"
    return "passed" if evidence.whole and judged.specscore is not None else "undecided"


def _findings(gate: Gate, judged: Record, evidence: Evidence) -> list[Finding]:
    """One a gate, of reply lengths one a profile; with the estimate that was held to the limit."""
    if gate.check == "lengths" and judged.lengths and judged.limits.length_margin is not None:
        margin = judged.limits.length_margin
        return [_length_finding(name, length, margin) for name, length in judged.lengths.items()]
    applies = gate.outcome != "n/a"
    estimate, margin_of = _held(gate.check, judged, evidence)
    return [
        Finding(
            check=_CHECKS.get(gate.check, gate.check),
            required=applies,
            outcome=_OUTCOMES[gate.outcome],
            estimate=estimate,
            margin=margin_of,
            missing=None if applies else "no data, or the task sets no limit",
            says=gate.reason or ("within its limit" if applies else "counted as passed, as the contest has it"),
        )
    ]


_CHECKS = {"argmax": "first_choice", "greedy_agreement": "greedy"}
_OUTCOMES: dict[str, Outcome] = {"pass": "passed", "fail": "failed", "n/a": "undecided"}


def _held(check: str, judged: Record, evidence: Evidence) -> tuple[Estimate | None, float | None]:
    """A gate's estimate and its limit."""
    replies, tokens = contest_measure.scored(evidence.candidate)
    match check:
        case "likelihood":
            return _interval(judged.likelihood, replies, "nat a token"), judged.limits.likelihood_bound
        case "argmax":
            return _interval(judged.argmax, tokens, "share of tokens"), judged.limits.argmax_bound
        case "memory" if judged.memory is not None:
            peak = judged.memory.peak_mib
            found = Estimate(value=peak, low=peak, high=peak, level=1, n=1, unit="MiB", method="largest sample seen")
            return found, judged.memory.allowed_mib
        case _:
            return None, None


def _interval(gap: Gap | None, n: int, unit: str) -> Estimate | None:
    if gap is None:
        return None
    low, high = gap.gap - Z * gap.se, gap.gap + Z * gap.se
    method = "difference of means, candidate − stock; normal interval, clustered by prompt"
    return Estimate(value=gap.gap, low=low, high=high, level=LEVEL, n=n, unit=unit, method=method)


def _length_finding(profile: str, length: Length, margin: float) -> Finding:
    method = f"ratio of mean reply lengths, {'paired by prompt' if length.paired else 'not paired'}; delta method"
    return Finding(
        check="lengths",
        profile=profile,
        required=True,
        outcome="failed" if outside(length, margin) else "passed",
        estimate=Estimate(
            value=length.ratio,
            low=length.low,
            high=length.high,
            level=LEVEL,
            n=length.replies or 0,
            unit="ratio",
            method=method,
        ),
        margin=margin,
        says=f"replies are {length.ratio:.2f}× as long as stock's",
    )


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
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
