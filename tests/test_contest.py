"""Plan contest: the published records, the boundary of every gate, a record of a new run."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factories
from gates import contest, contest_measure, contest_rules, plan, reading
from gates.evidence import Evidence
from loadgen.record import SCORE_DTYPE

DATA = Path(__file__).parent / "data" / "contest"
BUSY = "failed more requests than the stock engine in most busy passes"


def published(name: str = "qwen3-8b-draft-0.6b-k4") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return content


def judged(**changes: Any) -> contest_rules.Record:
    """A record that passes every gate, with the given fields changed."""
    return contest_rules.Record.model_validate({**published()["record"], **changes})


def outcome(record: contest_rules.Record, check: str) -> str:
    return next(gate.outcome for gate in contest_rules.gates(record) if gate.check == check)


@pytest.mark.parametrize(
    ("name", "specscore", "reason"),
    [
        ("qwen3-8b-dspark-k7", 1.9072668853467876, None),
        ("qwen3-8b-draft-0.6b-k4", 0.5471385466303842, None),
        ("qwen3.5-27b-mtp-dynamic-k", 0.0, BUSY),
    ],
)
def test_the_published_records_come_out_to_the_last_digit(name: str, specscore: float, reason: str | None) -> None:
    """Medians, SpecScore, score, reason and the page's sentence are the recorded ones."""
    content = published(name)
    again = contest.recheck(content)
    assert (specscore, specscore, reason) == (again.specscore, again.score, again.reason)
    assert {workload: ratio["ratio"] for workload, ratio in content["record"]["ratios"].items()} == again.medians
    assert content["submission"]["page_verdict"] == again.sentence
    assert again.reproduced
    assert again.differences == []


@pytest.mark.parametrize("name", ["qwen3-8b-dspark-k7", "qwen3-8b-draft-0.6b-k4", "qwen3.5-27b-mtp-dynamic-k"])
def test_a_record_survives_being_read_and_written(name: str) -> None:
    """The models keep every field of the files, `paired` and `replies` only where they were."""
    _, record = contest.parse(published(name))
    assert published(name)["record"] == contest.as_json(record)


def test_the_bare_record_is_judged_too() -> None:
    """The object with `ratios` is enough; `submission` is not needed."""
    assert contest.recheck(published()["record"]).reproduced


def touching(gap: float, se: float) -> float:
    """The bound that the near end of the interval just touches."""
    return abs(gap) - contest_rules.Z * se


@pytest.mark.parametrize("check", ["likelihood", "argmax"])
@pytest.mark.parametrize("gap", [0.3, -0.3])
@pytest.mark.parametrize("se", [0.0, 0.04, 0.1])
def test_a_gap_fails_only_wholly_outside_its_bound(check: str, gap: float, se: float) -> None:
    """An interval that just touches the bound passes; one that just misses it fails; on both sides."""
    figure = {"gap": gap, "se": se, "candidate": gap, "stock": 0.0}
    bound = touching(gap, se)
    limits = published()["record"]["limits"]

    def with_bound(value: float) -> str:
        return outcome(judged(**{check: figure, "limits": {**limits, f"{check}_bound": value}}), check)

    assert with_bound(bound) == "pass"
    assert with_bound(math.nextafter(bound, 0)) == "fail"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.05, 1.4, "pass"),
        (math.nextafter(1.05, 2), 1.4, "fail"),
        (0.6, 0.95, "pass"),
        (0.6, math.nextafter(0.95, 0), "fail"),
    ],
)
def test_lengths_fail_only_where_the_interval_misses_the_margin(low: float, high: float, expected: str) -> None:
    """[low, high] that just touches [0.95, 1.05] passes, in either direction."""
    length = {"ratio": (low + high) / 2, "low": low, "high": high}
    assert expected == outcome(judged(lengths={"solo": length}), "lengths")


def test_the_reason_names_the_workloads_whose_lengths_are_off() -> None:
    """Only those outside the margin are named."""
    good = {"ratio": 1.0, "low": 0.9, "high": 1.1}
    short = {"ratio": 0.5, "low": 0.4, "high": 0.6}
    record = judged(lengths={"solo": short, "team": good, "busy": short})
    assert contest_rules.reason(record) == "reply lengths differ from the stock engine's in solo and busy"


@pytest.mark.parametrize(("peak", "expected"), [(169119.1, "pass"), (math.nextafter(169119.1, math.inf), "fail")])
def test_memory_may_reach_what_is_allowed(peak: float, expected: str) -> None:
    """The peak may equal the allowance and not exceed it."""
    memory = {"ok": expected == "pass", "peak_mib": peak, "allowed_mib": 169119.1}
    assert expected == outcome(judged(memory=memory), "memory")


@pytest.mark.parametrize(("fidelity", "expected"), [(0.002, "pass"), (math.nextafter(0.002, 1), "fail")])
def test_fidelity_may_reach_its_ceiling(fidelity: float, expected: str) -> None:
    """A mean difference equal to the ceiling passes."""
    assert expected == outcome(judged(fidelity=fidelity), "fidelity")


@pytest.mark.parametrize(("agreement", "expected"), [(0.95, "pass"), (math.nextafter(0.95, 0), "fail")])
def test_greedy_agreement_may_reach_its_floor(agreement: float, expected: str) -> None:
    """Agreement equal to the floor passes; without a floor the gate does not apply."""
    limits = published()["record"]["limits"]
    record = judged(greedy_agreement=agreement, limits={**limits, "greedy_agreement_floor": 0.95})
    assert expected == outcome(record, "greedy_agreement")
    assert outcome(judged(greedy_agreement=agreement), "greedy_agreement") == "n/a"


@pytest.mark.parametrize(
    ("busy", "team", "reason"),
    [
        ([0.0, 1.5, 1.6], [1.2, 1.2, 1.2], None),  # one of three is not most
        ([0.0, 0.0, 1.6], [1.2, 1.2, 1.2], BUSY),
        ([0.0, 1.6], [1.2, 1.2], None),  # one of two is not most
        ([0.0, 0.0, 0.0], [0.0, 1.2, 0.0], BUSY.replace("busy", "team and busy")),
    ],
)
def test_failing_more_requests_in_most_passes_fails(busy: list[float], team: list[float], reason: str | None) -> None:
    """A ratio of 0 stands for a pass with more failures than stock; every workload with most of them is named."""
    ratios = {"team": {"passes": team, "ratio": None}, "busy": {"passes": busy, "ratio": None}}
    record = judged(ratios=ratios)
    assert reason == contest_rules.reason(record)
    assert (reason is not None) == (contest_rules.specscore(record) == 0.0)


def test_all_reasons_are_given() -> None:
    """Two failed gates, two reasons, in the page's order."""
    record = judged(fidelity=0.5, memory={"ok": False, "peak_mib": 2.0, "allowed_mib": 1.0})
    said = contest_rules.reason(record)
    assert said is not None
    assert [
        said.split("; ")[0],
        said.split("; ")[1][: len("log-probabilities of the fixed texts")],
    ] == ["used more device memory than allowed", "log-probabilities of the fixed texts"]
    assert contest_rules.specscore(record) == 0.0


def test_a_gate_without_data_counts_as_passed() -> None:
    """That is the contest's rule; plan strict says undecided instead."""
    nothing = {"likelihood": None, "argmax": None, "fidelity": None, "lengths": None, "memory": None}
    record = judged(**nothing, greedy_agreement=None)
    assert {"n/a"} == {gate.outcome for gate in contest_rules.gates(record) if gate.check != "failures"}
    assert contest_rules.reason(record) is None


def test_the_power_of_a_gate_is_that_of_its_normal_interval() -> None:
    """Caught at 1, 2, 3 bounds, against the published standard error: 2.5 %, 21 %, 63 %, as a simulation gives it."""
    gate = contest_rules.gates(judged())[2]
    assert gate.power is not None
    assert [round(share, 3) for share in gate.power] == [0.025, 0.207, 0.628]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("score", {"score": 0.55}),
        ("specscore", {"specscore": math.nextafter(0.5471385466303842, 1)}),
        ("reason", {"reason": "slow"}),
        ("likelihood.gap", {"likelihood": {"gap": 0.02, "se": 0.04, "candidate": -0.7, "stock": -0.71}}),
        ("memory.ok", {"memory": {"ok": False, "peak_mib": 1.0, "allowed_mib": 2.0}}),
    ],
)
def test_a_record_that_was_changed_is_not_reproduced(field: str, change: dict[str, Any]) -> None:
    """The field that does not follow from the others is named, also by one unit in the last place."""
    again = contest.recheck({**published()["record"], **change})
    assert not again.reproduced
    assert [field] == [difference.field for difference in again.differences]


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"record": {}},
        {"record": {**published()["record"], "likelihod": None}},
        {"record": {**published()["record"], "fidelity": float("nan")}},
        {"record": {name: value for name, value in published()["record"].items() if name != "likelihood"}},
        {"record": {**published()["record"], "score": "1.0"}},
    ],
)
def test_what_is_no_record_says_so(content: Any) -> None:
    """A misspelt or missing field is never a gate without data."""
    with pytest.raises(contest.NoRecord, match="no contest record"):
        contest.recheck(content)


SUBMISSION = 'title = "DSpark k=7"\nmodel = "Qwen3-8B"\ntrack = "scored"\nspeculator = "a directory"\nengine = "vllm"\n'


def test_a_submission_is_read_from_toml(tmp_path: Path) -> None:
    """Its fields are kept as they are; what is left out is None."""
    file = tmp_path / "submission.toml"
    file.write_text(SUBMISSION)
    read = contest.load_submission(file)
    assert (read.title, read.model, read.track) == ("DSpark k=7", "Qwen3-8B", "scored")
    assert (read.speculator, read.engine, read.kind) == ("a directory", "vllm", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SUBMISSION + 'author = "me"\n', "author: Extra inputs are not permitted"),
        ('title = "x"\nmodel = "y"\n', "track: Field required"),
        ("title = 3\n", "title: Input should be a valid string"),
        ("title = \n", "is no TOML"),
        (SUBMISSION + 'page_verdict = "Passed every gate."\n', "what the judge writes"),
    ],
)
def test_a_bad_submission_names_the_field(tmp_path: Path, text: str, said: str) -> None:
    """The file, the field and what may stand there."""
    file = tmp_path / "submission.toml"
    file.write_text(text)
    with pytest.raises(contest.SubmissionError, match=said) as error:
        contest.load_submission(file)
    assert str(file) in str(error.value)


def test_a_missing_submission_file_is_an_error(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(contest.SubmissionError, match=r"nowhere\.toml: cannot be read"):
        contest.load_submission(tmp_path / "nowhere.toml")


# A record of a new run.

PLAN = plan.load("contest")


def made(path: Path, candidate: factories.Server, **changes: Any) -> Evidence:
    shape = factories.Shape(requests=40, **changes)
    return reading.load(factories.comparison(path / "run", np.random.default_rng(5), candidate=candidate, shape=shape))


def test_the_shipped_limits_are_those_of_the_published_8b_records() -> None:
    """The plan and the records agree on every limit."""
    limits = contest_measure.Rules.model_validate(PLAN.contest).limits()
    assert published()["record"]["limits"] == limits.model_dump()


def test_a_record_of_a_lossless_run_has_everything_that_was_measured(tmp_path: Path) -> None:
    """Ratios by pass, gaps, lengths by prompt, acceptance; what needs probes is None; and recheck reproduces it."""
    record = contest.record(made(tmp_path, factories.Server(token_ms=5, per_chunk=4, drafts=True, peak_mib=80e3)), PLAN)
    assert record.reason is None
    assert [pytest.approx(2, rel=0.05)] * 3 == record.ratios["solo"].passes
    assert record.score == pytest.approx(2, rel=0.02)
    assert record.likelihood is not None
    assert record.likelihood.gap == record.likelihood.candidate - record.likelihood.stock
    assert abs(record.likelihood.gap) < 4 * record.likelihood.se
    assert record.lengths is not None
    assert (record.lengths["team"].paired, record.lengths["team"].replies) == (True, 120)
    assert (record.fidelity, record.greedy_agreement) == (None, None)
    assert record.memory == contest_rules.Memory(ok=True, peak_mib=80e3, allowed_mib=0.9 * 100e3 + 4096)
    assert set(record.acceptance) == {"solo", "team"}
    assert contest.recheck(contest.as_json(record)).reproduced


def test_a_verdict_of_the_contest_is_passed_or_failed(tmp_path: Path) -> None:
    """Every gate is a finding; those without data are named in a warning, as they count as passed."""
    verdict = contest.judge(made(tmp_path, factories.FAST), PLAN)
    assert verdict.outcome == "passed"
    assert verdict.specscore is not None
    assert verdict.specscore.value == pytest.approx(2, rel=0.02)
    assert {finding.check: finding.outcome for finding in verdict.findings if finding.profile is None} == {
        "memory": "undecided",
        "fidelity": "undecided",
        "likelihood": "passed",
        "first_choice": "passed",
        "greedy": "undecided",
        "failures": "passed",
    }
    assert any("memory, fidelity, greedy agreement" in warning for warning in verdict.warnings)
    assert "records.jsonl" in verdict.inputs


def test_a_candidate_that_drops_requests_scores_nothing(tmp_path: Path) -> None:
    """Each pass with more failures than stock is 0, and the reason names both profiles."""
    verdict = contest.judge(made(tmp_path, factories.Server(token_ms=5, failing=0.2)), PLAN)
    assert verdict.outcome == "failed"
    assert verdict.diagnosis is not None
    assert BUSY.replace("busy", "solo and team") in verdict.diagnosis
    assert verdict.specscore is not None
    assert verdict.specscore.value == 0.0
    assert verdict.speed["solo"].passes == [0.0, 0.0, 0.0]


def test_equal_failures_are_no_reason(tmp_path: Path) -> None:
    """Only more failures than stock's make a pass 0."""
    both = factories.Server(failing=1.0)
    rng = np.random.default_rng(5)
    run = factories.comparison(tmp_path / "run", rng, stock=both, candidate=both)
    assert contest.record(reading.load(run), PLAN).reason is None


def test_what_the_client_called_off_is_no_failure(tmp_path: Path) -> None:
    """Cancelled requests are our doing."""
    record = contest.record(made(tmp_path, factories.Server(token_ms=5, failing=0.2, failure="cancelled")), PLAN)
    assert record.reason is None


def test_an_unfinished_run_never_passes(tmp_path: Path) -> None:
    """It is undecided, where nothing failed yet."""
    verdict = contest.judge(made(tmp_path, factories.FAST, ended=None), PLAN)
    assert (verdict.outcome, verdict.interim) == ("undecided", True)


def test_a_run_without_scores_is_judged_by_the_other_gates(tmp_path: Path) -> None:
    """The gaps are null, which the contest counts as passed, and the verdict says so."""
    verdict = contest.judge(made(tmp_path, factories.Server(token_ms=5, scored=False)), PLAN)
    assert verdict.outcome == "passed"
    assert any("likelihood, argmax" in warning for warning in verdict.warnings)


def test_a_plan_without_contest_rules_is_refused(tmp_path: Path) -> None:
    """And so is one with a rule that there is none of."""
    found = made(tmp_path, factories.FAST)
    with pytest.raises(plan.PlanError, match="no table"):
        contest.record(found, plan.load("strict"))
    with pytest.raises(plan.PlanError, match=r"contest\.argmax: Extra inputs"):
        contest.record(found, PLAN.model_copy(update={"contest": {"argmax": 1}}))


def test_standard_errors_are_those_that_repetition_shows() -> None:
    """Means over tokens, paired by prompt: in 400 repetitions gap over se spreads as a standard normal does."""
    rng, z = np.random.default_rng(2), []
    prompts = [("solo", 0, str(index)) for index in range(80)]
    for _ in range(400):
        difficulty = rng.normal(size=80)
        arms = []
        for _ in range(2):
            tokens = rng.geometric(0.05, 80).astype(float)
            arms.append(contest_measure.Replies(prompts, tokens * (difficulty + rng.normal(size=80)), tokens))
        gap = contest_measure._gap(arms, paired=True)
        assert gap is not None
        z.append(gap.gap / gap.se)
    assert np.std(z) == pytest.approx(1, abs=3 / np.sqrt(2 * 400) + 0.03)
    assert np.mean(z) == pytest.approx(0, abs=3 / np.sqrt(400))


def test_pairing_by_prompt_narrows_the_interval() -> None:
    """Two identical arms differ by nothing, for certain; taken as unpaired they do not."""
    prompts = [("solo", 0, str(index)) for index in range(20)]
    arm = contest_measure.Replies(prompts, np.arange(20.0), np.ones(20))
    paired, apart = (contest_measure._gap([arm, arm], paired=paired) for paired in (True, False))
    assert paired is not None
    assert apart is not None
    assert paired.se == 0
    assert apart.se == pytest.approx(math.sqrt(2 * 40 / 39 * np.var(np.arange(20)) / 20))


def test_first_choices_count_every_tied_cell() -> None:
    """A token that ties with the likeliest is a first choice; one outside the list, or without a figure, is not."""
    rows = np.zeros(4, SCORE_DTYPE)
    rows["logprobs"] = -np.inf
    rows["logprobs"][:, :3] = [-0.7, -0.7, -3.0]
    rows["ids"][:, 3:] = -1
    rows["logprob"] = [-0.7, -3.0, -9.0, np.nan]
    assert contest_measure._not_first(rows).tolist() == [0, 1, 1, 1]
    assert contest_measure._logprob(rows) == pytest.approx([-0.7, -3.0, -9.0, -3.0])
