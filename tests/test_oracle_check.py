"""What the verdict makes of an oracle: its finding, its diagnosis, and the level that both spend."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from factories import Shape, comparison
from gates import oracle_check, plan, reading, rejection, tokens, verdict
from gates.evidence import Evidence, NotComparable
from gates.finding import Finding, Verdict
from loadgen.record import Run
from loadgen.record.writer import write_oracle, write_scores
from oracled import NAME, P, Q, compared, unverified

PLAN = plan.load("demo").without({"eos", "failures", "memory", "lengths"})  # the synthetic replies just break off
ALPHA = PLAN.alpha_different * verdict.GAP_BESIDE_ORACLES


def asked(evidence: Evidence, suspected: bool = True) -> Finding:
    """Over all tokens. suspected: as if the e-process had rejected."""
    profiles = frozenset({None} if suspected else ())
    found = rejection.Suspected(profiles, (), 0.0, None)
    return oracle_check.findings(evidence, found, ALPHA, 0.95)[0]


def judged(tmp_path: Path, evidence: Evidence) -> Verdict:
    """Under PLAN; the run is one of files to name, no more."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=Shape({"solo": 1}, passes=1, requests=2))
    return verdict.judge(dataclasses.replace(evidence, runs=[run]), PLAN)


def test_unverified_drafts_are_different_and_named(tmp_path: Path) -> None:
    """A tenth of 19,200 tokens the draft's: a figure that covers .1, and the name in diagnosis and words."""
    found = judged(tmp_path, compared(unverified(0.1), replies=120, seed=2))
    one = next(one for one in found.findings if one.check == "oracle")
    assert (found.outcome, one.outcome, one.required) == ("different", "different", False)
    assert found.diagnosis == f"looks like 10 % of tokens drawn by the model {NAME} without verification"
    assert one.estimate is not None and one.estimate.low is not None and one.estimate.high is not None
    assert one.estimate.low < 0.1 < one.estimate.high < 0.25
    assert one.says.endswith(f"of the tokens were drawn by the model {NAME} and not verified")


def test_the_model_itself_is_named(tmp_path: Path) -> None:
    """All tokens the oracle's."""
    found = judged(tmp_path, compared(Q, replies=40))
    assert (found.outcome, found.diagnosis) == ("different", f"looks like the model {NAME}")
    assert f"the tokens are like those of the model {NAME}" in {one.says for one in found.findings}


def test_a_lossless_candidate_passes_with_a_bound(tmp_path: Path) -> None:
    """Nothing is different, and the finding says how much of it there can be at most."""
    found = judged(tmp_path, compared(P))
    one = next(one for one in found.findings if one.check == "oracle")
    assert found.outcome != "different"
    assert one.outcome == "passed" and one.says.startswith("at most ")
    assert one.estimate is not None and one.estimate.low is not None and one.estimate.high is not None
    assert one.estimate.low < 0 < one.estimate.high < 0.2


def test_a_floor_that_both_share_is_no_difference() -> None:
    """Both servers draw a tenth from the oracle: the e-process rejects, and there is no gap to stock."""
    evidence = compared(unverified(0.1), unverified(0.1), replies=120)
    suspected = rejection.suspected(evidence, 2.5e-4, 1.25e-4, PLAN)
    assert suspected.profiles == {None, "solo"}
    assert {one.outcome for one in oracle_check.findings(evidence, suspected, ALPHA, 0.95)} == {"passed"}


def test_the_gap_alone_calls_nothing_different() -> None:
    """Without the e-process it is an estimate; with it a difference."""
    evidence = compared(unverified(0.3), replies=60)
    assert [asked(evidence, suspected).outcome for suspected in (False, True)] == ["passed", "different"]


def test_lossless_gaps_exclude_zero_no_more_often_than_their_level() -> None:
    """Of 150 pairs of 1,600 tokens each, at a level of .1 (one side of it); binomial (.999)."""
    found = rejection.Suspected(frozenset({None}), (), 0.0, None)
    wrong = 0
    for seed in range(150):
        one = oracle_check.findings(compared(P, replies=10, seed=seed), found, 0.1, 0.95)[0]
        wrong += one.outcome == "different"
    assert wrong <= binom.ppf(0.999, 150, 0.05)


def test_an_oracle_that_is_the_reference_says_nothing() -> None:
    """Its ratios are 1; the finding says why, and what it cannot tell apart."""
    one = asked(compared(P, replies=10, oracle=P))
    assert one.outcome == "undecided" and one.missing is not None and "says what the reference says" in one.missing


def test_an_oracle_without_scores_asks_for_them() -> None:
    """Its alternatives stand in the mixture at ratio 1, and the finding names the command."""
    evidence = compared(P, replies=10, oracle=None)
    arms = [dataclasses.replace(arm, oracles=(NAME,)) for arm in evidence.arms]
    one = asked(dataclasses.replace(evidence, stock=arms[0], candidate=arms[1]))
    assert one.missing is not None and "loadgate score RUN" in one.missing
    assert tokens.of(arms[1]).evidence.totals[-4:] == pytest.approx(np.zeros(4))


def test_levels_of_gaps_sum_to_the_same_with_oracles() -> None:
    """Five checks a fifth each; with oracles six sixths, of which all oracles together have one."""
    without, beside = compared(P, replies=2, oracle=None), compared(P, replies=2)
    assert (verdict.gap_share(without) * 5, verdict.gap_share(beside) * 6) == pytest.approx((1, 1))


# From files.


def scored_by_oracle(run: Run, name: str = NAME, model: str = "m", flatten: float = 0.9) -> None:
    write_oracle(run.path, name, {"model": model})
    for label, profile, pass_no, rows in list(run.scores()):
        logp = rows["logprobs"].astype(np.float64) * flatten
        rows["logprobs"] = logp - np.log(np.exp(logp).sum(axis=1, keepdims=True))
        write_scores(run.path, (label, profile, pass_no), rows[: len(rows) // 2 if label == "stock" else None], name)


def test_oracles_of_a_run_are_found_on_disk(tmp_path: Path) -> None:
    """Folder by folder: names, aligned rows, digests; a warning where one scored only a part."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=Shape({"solo": 1}, passes=1, requests=30))
    assert (run.oracles(), reading.load(run).candidate.oracles) == ({}, ())
    before = {(label, profile, pass_no): len(rows) for label, profile, pass_no, rows in run.scores()}
    scored_by_oracle(run)
    found = reading.load(run)
    assert run.oracles() == {NAME: "m"}
    assert {(label, profile, pass_no): len(rows) for label, profile, pass_no, rows in run.scores()} == before
    assert [arm.oracles for arm in found.arms] == [(NAME,), (NAME,)]
    assert (found.candidate.passes[0].oracles[NAME].at == np.arange(len(found.candidate.passes[0].scored.rows))).all()
    assert len([one for one in found.warnings if one.startswith(f"stock: the oracle {NAME} scored")]) == 1
    assert f"scores/oracle-{NAME}/stock-solo-0.npy" in verdict.judge(found, PLAN).inputs


def test_one_name_for_two_models_is_refused(tmp_path: Path) -> None:
    """Two runs whose oracles share no more than a name are not judged together."""
    from factories import single

    runs = [single(tmp_path / name, np.random.default_rng(1), shape=Shape(requests=4)) for name in "ab"]
    for run, model in zip(runs, ("one", "another"), strict=True):
        scored_by_oracle(run, model=model)
    with pytest.raises(NotComparable, match="oracle draft is not one model"):
        reading.load(*runs)
