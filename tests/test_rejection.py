"""What the e-process says in strata, and which rejections do not matter."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from arms import CHUNK, LOSSLESS, Law, P, compared
from factories import Shape, comparison, heated
from gates import plan, rejection, strata, tokens, verdict
from gates.checks import first_choice, likelihood
from gates.eprocess import log_mean_exp
from gates.evidence import Evidence
from gates.finding import Verdict

MARGINS = {
    "likelihood": likelihood.Settings(margin_temperature=0.06, profile_margin_temperature=0.075),
    "first_choice": first_choice.Settings(margin=0.025, profile_margin=0.03),
}
PLAN = plan.load("demo").without({"eos", "failures", "memory", "lengths"})  # the synthetic replies just break off
PLAN = PLAN.model_copy(update={"required": PLAN.required | MARGINS})


LATE = Law(heated(P, 0.75), since=144)
MILD = Law(heated(P, 0.97))


def of_stratum(found: Verdict) -> dict[str, set[str]]:
    """Level → checks that are different there."""
    levels: dict[str, set[str]] = {}
    for one in found.findings:
        if one.stratum is not None and one.outcome == "different":
            levels.setdefault(one.stratum, set()).add(one.check)
    return levels


def judged(tmp_path: Path, evidence: Evidence) -> Verdict:
    """Under PLAN; the run is one of files to name, no more."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=Shape({"solo": 1}, passes=1, requests=2))
    return verdict.judge(dataclasses.replace(evidence, runs=[run]), PLAN)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_fault_that_vanishes_in_the_mean_is_different(tmp_path: Path, seed: int) -> None:
    """Temperature .75 in the last tenth of each reply: the pooled figures lie inside their margins, and that excuses
    nothing, for in its stratum it lies outside them."""
    found = judged(tmp_path, compared(LATE, seed=seed))
    pooled = [one for one in found.findings if one.profile is None and one.stratum is None]
    inside = {one.check: one.outcome for one in pooled if one.check in ("likelihood", "first_choice")}
    assert inside == {"likelihood": "equivalent", "first_choice": "equivalent"}
    assert found.outcome == "different"
    assert "likelihood" in of_stratum(found)["tokens 129 on"]
    assert found.diagnosis is not None and "temperature" in found.diagnosis


def test_a_small_fault_everywhere_is_excused_in_strata_too(tmp_path: Path) -> None:
    """Temperature .97 against margins of .06 and .075: measurable, in strata too, and of no size that matters."""
    evidence = compared(MILD, replies=1500)
    suspected = rejection.suspected(evidence, 2.5e-4, 1.25e-4, PLAN)
    assert suspected.levels and all(level.excusable for level in suspected.levels)
    found = judged(tmp_path, evidence)
    assert (found.outcome, of_stratum(found)) == ("equivalent", {})
    assert any(one.immaterial for one in found.findings)
    assert found.diagnosis is not None and "temperature" in found.diagnosis


def test_what_is_not_known_to_lie_inside_the_margins_is_not_contained() -> None:
    """The gap to stock at the last level: none where both are lossless, .17 of the variance where half of it is hot.
    A plan that bounds neither likelihood nor first choices contains nothing."""
    for law, contained in ((LOSSLESS, True), (LATE, False)):
        evidence = compared(law)
        assert rejection._contained(evidence, "position", 3, PLAN) is contained
        assert not rejection._contained(evidence, "position", 3, PLAN.without({"likelihood", "first_choice"}))
        more = PLAN.model_copy(update={"profile_replies": 401})  # of which there are 400
        assert not rejection._contained(evidence, "position", 3, more)


def test_a_floor_that_both_share_is_no_difference_in_any_stratum() -> None:
    """Both servers sample the last tokens hot: the e-process rejects there, and there is no gap to stock."""
    evidence = compared(LATE, LATE)
    found = rejection.suspected(evidence, 2.5e-4, 1.25e-4, PLAN)
    assert [(level.name, level.contained) for level in found.levels if level.stratum == "position"] == [
        ("tokens 129 on", True)
    ]
    assert rejection.of_strata(evidence, found, 2e-4, PLAN) == []


def test_levels_without_tokens_count_as_one_in_the_mean() -> None:
    """Chunks of four leave the fifth level of chunk_index empty: the mean is over five all the same, since one over a
    number that grows with the data is no supermartingale."""
    evidence = compared(Law(LATE.q), replies=20)
    of_chunk = tokens.of(evidence.candidate).of_strata["chunk_index"]
    assert (of_chunk.tokens == 0).tolist() == [False] * CHUNK + [True]
    seen = float(log_mean_exp(log_mean_exp(of_chunk.log_ratios[:CHUNK])[None, :])[0])
    whole = math.log((CHUNK * math.exp(seen) + 1) / (CHUNK + 1))
    only = PLAN.model_copy(update={"strata": ["chunk_index"]})
    for threshold, rejects in ((whole - 0.01, True), (whole + 0.01, False)):
        assert bool(rejection.suspected(evidence, 1e-300, math.exp(-threshold), only).levels) is rejects


def test_strata_reject_lossless_tokens_no_more_often_than_their_level() -> None:
    """Of 40 lossless comparisons of 1,600 tokens, at a level of .05 in all; binomial (.999)."""
    rejected = 0
    for seed in range(40):
        found = rejection.suspected(compared(LOSSLESS, replies=10, seed=seed), 1e-300, 0.05, PLAN)
        rejected += bool(found.levels) or bool(found.profiles)
    assert rejected <= 8


def test_every_stratum_has_its_levels() -> None:
    """Where chunks are known each token is in one level of each stratum, and each level has a name."""
    made = tokens.of(compared(LOSSLESS, replies=10).candidate)
    for stratum, names in strata.LEVELS.items():
        level = made.levels[stratum]["solo"]
        assert (level >= 0).all() and (level < len(names)).all()
        assert made.of_strata[stratum].tokens.tolist() == np.bincount(level, minlength=len(names)).tolist()
