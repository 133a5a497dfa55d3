"""The verdict over all findings."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest

from factories import FAST, SLOW, WARM, Server, Shape, comparison, single
from gates import plan, reading, verdict
from gates.finding import Verdict
from gates.plan import PlanError
from gates.rejection import Suspected

CLEAN = Suspected(frozenset(), (), 0.0, None)
DEMO = plan.load("demo").without({"eos"})  # the synthetic replies just break off


def judged(path: Path, candidate: Server = FAST, shape: Shape | None = None, without: tuple[str, ...] = ()) -> Verdict:
    run = comparison(path / "run", np.random.default_rng(3), SLOW, candidate, shape)
    return verdict.judge(reading.load(run), DEMO, without)


def test_a_lossless_candidate_is_equivalent_with_its_speed(tmp_path: Path) -> None:
    """Twice the rate, in every profile and over all; four tokens a chunk make the acceptance."""
    found = judged(tmp_path)
    assert (found.outcome, found.interim, found.needs, found.warnings) == ("equivalent", False, None, [])
    assert found.specscore is not None and found.specscore.value == pytest.approx(2, rel=0.01)
    assert list(found.speed) == ["solo", "team"]
    assert found.acceptance["solo"] == pytest.approx(3.9, abs=0.1)


def test_a_warmer_candidate_is_different(tmp_path: Path) -> None:
    """Temperature .9, found by likelihood among others and named, whatever the speed."""
    found = judged(tmp_path, WARM)
    assert found.outcome == "different"
    assert "likelihood" in {finding.check for finding in found.findings if finding.outcome == "different"}
    assert found.diagnosis == "looks like temperature ≈ 0.9"


def test_dropped_requests_alone_are_different(tmp_path: Path) -> None:
    """The tokens that came are the same model's; the requests that failed are not."""
    found = judged(tmp_path, Server(failing=0.2))
    assert found.outcome == "different"
    assert {finding.check for finding in found.findings if finding.outcome == "different"} == {"failures"}


def test_too_few_tokens_are_undecided_and_needs_says_how_many(tmp_path: Path) -> None:
    """The largest need of any required check; at least one."""
    found = judged(tmp_path, shape=Shape(requests=12))
    assert found.outcome == "undecided"
    assert found.needs is not None and 1 <= found.needs.tokens < 100_000


def test_a_required_check_without_data_leaves_it_undecided(tmp_path: Path) -> None:
    """Text only: speed and failures are known, the tokens are not."""
    found = judged(tmp_path, Server(returns_ids=False, scored=False))
    missing = {finding.check for finding in found.findings if finding.missing and finding.required}
    assert (found.outcome, missing) == ("undecided", {"likelihood", "first_choice", "tail", "junk", "pit"})


def test_other_prompts_are_never_equivalent(tmp_path: Path) -> None:
    """A candidate that shortens its prompts answers them well, and sooner: token ids that differ leave it undecided."""
    run = comparison(tmp_path / "run", np.random.default_rng(3), SLOW, FAST)
    found = reading.load(run)
    assert verdict.judge(found, DEMO).outcome == "equivalent"
    other = verdict.judge(dataclasses.replace(found, same_prompts=False), DEMO)
    assert (other.outcome, other.needs) == ("undecided", None)


def test_an_incomplete_run_is_never_equivalent(tmp_path: Path) -> None:
    """Its passes are judged, and the first warning says what it is."""
    found = judged(tmp_path, shape=Shape(ended="interrupted"))
    assert (found.outcome, found.interim) == ("undecided", True)
    assert found.warnings[0].startswith("The run is incomplete")
    assert all(finding.outcome in ("equivalent", "passed") for finding in found.findings if finding.required)


def test_an_incomplete_run_may_be_different(tmp_path: Path) -> None:
    """What has been seen stays seen."""
    assert judged(tmp_path, WARM, Shape(ended=None)).outcome == "different"


def test_between_passes_the_verdict_is_interim_and_may_be_equivalent(tmp_path: Path) -> None:
    """That is what lets a comparison stop as soon as it is decided."""
    run = comparison(tmp_path / "run", np.random.default_rng(3), shape=Shape(ended=None))
    found = verdict.judge(reading.load(run, between_passes=True), DEMO)
    assert (found.outcome, found.interim) == ("equivalent", True)


def test_a_check_left_out_is_written_down(tmp_path: Path) -> None:
    """And does not count: here the failures."""
    found = judged(tmp_path, Server(failing=0.2), without=("failures", "memory"))
    assert found.outcome == "equivalent"
    assert found.warnings == ["Left out of plan demo: failures (which the plan requires), memory."]
    assert {finding.check for finding in found.findings} == {*DEMO.required, "lengths"} - {"failures"}


def test_with_every_required_check_left_out_nothing_is_shown(tmp_path: Path) -> None:
    """A verdict of no checks is no equivalence."""
    assert judged(tmp_path, without=tuple(DEMO.required)).outcome == "undecided"


def test_leaving_out_an_unknown_check_names_the_nearest(tmp_path: Path) -> None:
    """A typo is not silently nothing."""
    with pytest.raises(PlanError, match=r"no check 'failure' to leave out\. Did you mean failures"):
        judged(tmp_path, without=("failure",))


def test_inputs_are_the_digests_of_the_files(tmp_path: Path) -> None:
    """Of everything that the verdict is made from."""
    found = judged(tmp_path)
    run = tmp_path / "run"
    assert found.inputs["records.jsonl"] == hashlib.sha256((run / "records.jsonl").read_bytes()).hexdigest()
    assert "scores/candidate-team-2.npy" in found.inputs and "end.json" in found.inputs


def test_two_runs_are_judged_as_one_comparison(tmp_path: Path) -> None:
    """Stock first; their files stand under their roles."""
    stock = single(tmp_path / "a", np.random.default_rng(1))
    candidate = single(tmp_path / "b", np.random.default_rng(2), FAST)
    found = verdict.judge(reading.load(stock, candidate), DEMO)
    assert found.outcome == "equivalent"
    assert {name.partition("/")[0] for name in found.inputs} == {"stock", "candidate"}


def test_levels_share_the_error_budget(tmp_path: Path) -> None:
    """Pooled sequences and the e-process half, strata a quarter, p-values a quarter; and looks for ever spend no more
    than one look."""
    run = comparison(tmp_path / "run", np.random.default_rng(3), shape=Shape(requests=8, passes=2))
    found = reading.load(run)
    modules = {name: verdict.checks.load(name) for name in DEMO.required}
    terms = {name: verdict._terms(modules, name, True, found, DEMO, CLEAN) for name in modules}
    sequences = {name: module.SEQUENCES for name, module in modules.items()}
    assert sum(terms[name].pooled.reject * n for name, n in sequences.items()) == pytest.approx(0.00025)
    assert sum(terms[name].profile.reject * n * 2 for name, n in sequences.items()) == pytest.approx(0.000125)
    assert sum(term.p_value * modules[name].P_VALUES for name, term in terms.items()) == pytest.approx(0.00025 / 6)
    assert sum(1 / (look * (look + 1)) for look in range(1, 10_000)) < 1


def test_a_speed_beyond_the_acceptance_is_doubted(tmp_path: Path) -> None:
    """Two tokens a step cannot make a server four times as fast."""
    found = judged(tmp_path, Server(token_ms=2.5, per_chunk=2, drafts=True))
    assert [warning for warning in found.warnings if "Speculation alone cannot do that" in warning]


def test_a_late_client_is_said(tmp_path: Path) -> None:
    """Above three milliseconds at the 99th percentile."""
    run = comparison(tmp_path / "run", np.random.default_rng(3), shape=Shape(requests=8))
    found = reading.load(run)
    late = dataclasses.replace(
        next(line for line in found.stock.telemetry),
        kind="client",
        values={"loop_lag_p99_ms": 5.2, "ambiguous_share": None},
    )
    found.stock.telemetry.append(late)
    warnings = verdict.judge(found, DEMO).warnings
    assert [warning for warning in warnings if warning.startswith("The client was late: 5 ms")]
