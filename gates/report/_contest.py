"""The contest's page: what was submitted, whether it passed, how fast it is, and what each gate could have missed."""

from collections.abc import Sequence

from gates import contest_rules as rules
from gates.contest_rules import Gap, Gate, Record, Submission
from gates.report._blocks import Appendix, Block, Column, Heading, Lines, Table
from gates.report._figures import NONE, gib, percent
from gates.report._harmless import ascii_json

WORKLOADS = {"solo": "one lane", "team": "team lanes busy", "busy": "KV cache nearly full"}

_NUMBERS = {1: "one speedup", 2: "two speedups", 3: "three speedups", 4: "four speedups"}
_NOT_SET = "none on this task"


def page(submission: Submission | None, record: Record) -> list[Block]:
    return [
        *_headline(submission, record),
        Lines([_score(record), *(_workload(name, record) for name in record.ratios)]),
        Heading("Lossless gate"),
        _gates(record),
        Lines(
            [
                "A gate fails only where its whole 95 % interval lies outside the limit, and one without data counts "
                'as passed. "catches": how often a true gap of 1, 2 or 3 times the limit would have failed it.'
            ]
        ),
        Heading("Speculation"),
        _speculation(record),
    ]


def appendix(submission: Submission | None, record: Record) -> Appendix:
    """The file that `loadgate recheck` reads."""
    content = {"record": record.model_dump(exclude_unset=True)}
    if submission is not None:
        content = {"submission": submission.model_dump(exclude_none=True), **content}
    return Appendix("Record", ascii_json(content), "json")


def _headline(submission: Submission | None, record: Record) -> list[Block]:
    sentence = rules.sentence(record)
    if submission is None:
        return [Heading("A contest record without a submission", 1), Lines([sentence])]
    said = [("kind", submission.kind), ("speculator", submission.speculator), ("engine", submission.engine)]
    return [
        Heading(f"{submission.model} · {submission.track}", 1),
        Lines([submission.title, *(f"{name}: {value}" for name, value in said if value is not None)]),
        Lines([sentence]),
    ]


def _score(record: Record) -> str:
    score = rules.specscore(record)
    if score is None:
        return "SpecScore – : a workload has no pass that was measured on both engines"
    if score == 0:
        return "SpecScore 0"
    speedups = _NUMBERS.get(len(record.ratios), f"{len(record.ratios)} speedups")
    return f"SpecScore {score:.3f} — geometric mean of the {speedups}"


def _workload(name: str, record: Record) -> str:
    passes = ", ".join(f"{value:.2f}" for value in record.ratios[name].passes) or "none measured"
    what = f"{WORKLOADS[name]}; " if name in WORKLOADS else ""
    return f"{name} {_speedup(name, record)} {what}passes {passes}"


def _speedup(name: str, record: Record) -> str:
    found = rules.medians(record).get(name)
    return NONE if found is None else f"{found:.2f}x"


def _gates(record: Record) -> Table:
    columns = [Column("check"), Column("measured"), Column("limit"), Column("result"), Column("catches 1×, 2×, 3×")]
    rows = [
        [_NAMES[gate.check], *_measured(gate.check, record), gate.outcome, _power(gate)] for gate in rules.gates(record)
    ]
    return Table(columns, rows)


_NAMES = {
    "memory": "device memory",
    "fidelity": "fixed texts' log-probabilities",
    "likelihood": "sampled replies' likelihood",
    "argmax": "share of first choices",
    "greedy_agreement": "greedy agreement",
    "lengths": "reply lengths",
    "failures": "failed requests",
}


def _measured(check: str, record: Record) -> tuple[str, str]:
    """What was measured, and the limit it was held to."""
    limits = record.limits
    match check:
        case "memory":
            memory = record.memory
            return (NONE, NONE) if memory is None else (gib(memory.peak_mib), f"<= {gib(memory.allowed_mib)}")
        case "fidelity":
            return _short(record.fidelity), _limit(limits.fidelity_ceiling, "<= {}")
        case "likelihood":
            return _gap(record.likelihood), _limit(limits.likelihood_bound, "within ±{} at 95%")
        case "argmax":
            return _gap(record.argmax), _limit(limits.argmax_bound, "within ±{} at 95%")
        case "greedy_agreement":
            agreement = record.greedy_agreement
            return NONE if agreement is None else f"{agreement:.3f}", _limit(limits.greedy_agreement_floor, ">= {}")
        case "lengths":
            return _lengths(record), _limit(limits.length_margin, "1 ± {} at 95%")
        case _:
            return _failed(record), "≤ stock in most passes"


def _limit(value: float | None, words: str) -> str:
    return _NOT_SET if value is None else words.format(f"{value:g}")


def _short(value: float | None) -> str:
    return NONE if value is None else f"{value:.2g}"


def _gap(gap: Gap | None) -> str:
    return NONE if gap is None else f"{gap.gap:+.4f} ± {rules.Z * gap.se:.4f}"


def _lengths(record: Record) -> str:
    found = record.lengths or {}
    return ", ".join(f"{name} {one.ratio:.2f} ({one.low:.2f}…{one.high:.2f})" for name, one in found.items()) or NONE


def _failed(record: Record) -> str:
    counted = [(name, rules.failed_passes(ratio), len(ratio.passes)) for name, ratio in record.ratios.items()]
    return ", ".join(f"{name} {more} of {of} passes" for name, more, of in counted if more) or "no pass with more"


def _power(gate: Gate) -> str:
    return NONE if gate.power is None else _shares(gate.power)


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(percent(share) for share in shares)


def _speculation(record: Record) -> Table:
    columns = [Column("workload"), Column("tokens / verify step", right=True), Column("speedup", right=True)]
    names = list(dict.fromkeys([*record.ratios, *record.acceptance]))
    steps = {name: f"{value:.2f}" for name, value in record.acceptance.items()}
    return Table(columns, [[name, steps.get(name, NONE), _speedup(name, record)] for name in names])
