"""A fault that the e-process sees before the gap to stock does is neither different nor equivalent."""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from arms import LOSSLESS, Law, P, compared
from factories import Shape, comparison, heated
from gates import plan, rejection, sequential, tokens, unsettled, verdict
from gates.checks import first_choice, likelihood
from gates.evidence import Evidence
from gates.finding import Finding, Verdict

WIDE = {
    "likelihood": likelihood.Settings(margin_temperature=0.2, profile_margin_temperature=0.2),
    "first_choice": first_choice.Settings(margin=0.1, profile_margin=0.1),
}
"""Of few tokens, so that whatever is not held back is equivalent."""

PLAN = plan.load("demo").without({"eos", "failures", "memory", "lengths"})  # the synthetic replies just break off
PLAN = PLAN.model_copy(update={"required": PLAN.required | WIDE})
JUNK = Law(0.999 * P + 0.001 / P.shape[1])
HOT_LATE = Law(heated(P, 0.75), since=144)
SUSPICION = partial(rejection.suspected, alpha=2.5e-4, alpha_strata=1.25e-4, plan=PLAN)


def judged(tmp_path: Path, evidence: Evidence) -> Verdict:
    """Under PLAN; the run is one of files to name, no more."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=Shape({"solo": 1}, passes=1, requests=2))
    return verdict.judge(dataclasses.replace(evidence, runs=[run]), PLAN)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equivalent_waits_for_the_gap(tmp_path: Path, seed: int) -> None:
    """A thousandth of arbitrary tokens in 16,000: the junk statistics' gap is still open, the e-process beyond e^20."""
    evidence = compared(JUNK, replies=100, seed=seed)
    assert SUSPICION(evidence).log_e > 20
    found = judged(tmp_path, evidence)
    held = [one for one in found.findings if one.outcome == "undecided"]
    assert [(one.check, one.profile, one.stratum) for one in held] == [("junk", None, None)]
    assert "look like about 0.1 % of arbitrary tokens, as stock's own do not" in held[0].says
    assert (found.outcome, found.diagnosis) == ("undecided", "looks like about 0.1 % of arbitrary tokens")
    assert found.needs is not None and 5_000 < found.needs.tokens < 100_000


def test_more_tokens_settle_it(tmp_path: Path) -> None:
    found = judged(tmp_path, compared(JUNK, replies=600))
    assert found.outcome == "different" and found.needs is None
    assert all(one.outcome != "undecided" for one in found.findings)


@pytest.mark.parametrize("law", [JUNK, HOT_LATE, Law(heated(P, 0.97))])
def test_what_both_servers_do_holds_nothing_back(tmp_path: Path, law: Law) -> None:
    evidence = compared(law, law, replies=400)
    assert SUSPICION(evidence).likeliest is not None
    assert judged(tmp_path, evidence).outcome == "equivalent"


def test_a_fault_inside_its_margins_holds_nothing_back(tmp_path: Path) -> None:
    """Temperature .97, against margins of .2: the e-process names it, and the margins say that it does not matter."""
    evidence = compared(Law(heated(P, 0.97)), replies=1500)
    assert SUSPICION(evidence).likeliest is not None
    assert judged(tmp_path, evidence).outcome == "equivalent"


def test_a_stratum_that_may_be_beyond_its_margins_is_waited_for() -> None:
    """Temperature .75 from token 145 on: where the findings of the stratum are not yet different, all is held."""
    evidence = compared(HOT_LATE, replies=400)
    strict = {"likelihood": likelihood.Settings(margin_temperature=0.06, profile_margin_temperature=0.075)}
    suspicion = partial(SUSPICION, plan=PLAN.model_copy(update={"required": PLAN.required | strict}))
    found = suspicion(evidence)
    pooled = [Finding(check=name, required=True, outcome="passed", says="") for name in ("tail", "likelihood")]
    held = unsettled.unsettled(pooled, evidence, found, suspicion)
    assert held is not None and held.level is not None and held.level.name == "tokens 129 on"
    assert (held.finding.check, held.finding.outcome) == ("likelihood", "undecided")
    assert "at tokens 129 on" in held.finding.says
    assert [one.outcome for one in held.among(pooled)] == ["passed", "undecided"]
    found_there = [
        *pooled,
        Finding(check="tail", stratum="tokens 129 on", required=False, outcome="different", says=""),
    ]
    assert unsettled.unsettled(found_there, evidence, found, suspicion) is None
    assert unsettled.unsettled([], evidence, found, suspicion) is None  # a plan without checks of tokens


def test_what_is_needed_is_where_the_sequence_gets_to() -> None:
    """With the gap as measured, and so many tokens more, the sequence's half-width at its tightest is the gap."""
    evidence = compared(JUNK, replies=100)
    more = unsettled.needs(evidence, None, 2e-4)
    assert more is not None
    wanted = []
    for statistic in rejection.GAPS:
        both = (tokens.of(arm).residuals[statistic]["solo"] for arm in (evidence.candidate, evidence.stock))
        one, other = (sequential.sums(part) for part in both)
        variance = (one.spread + other.spread) / one.n * (one.n + more)
        rho = sequential.mixture(variance, 2e-4)
        wanted.append(sequential.half_width(variance, rho, 2e-4) / (one.n + more) / abs(one.mean - other.mean))
    assert min(wanted) == pytest.approx(1, rel=1e-3)


def test_lossless_tokens_are_held_back_no_more_often_than_the_level() -> None:
    """Of 60 lossless comparisons at a level of .1 in all (and temperature and greed count only outside their margins);
    binomial (.999)."""
    suspicion = partial(rejection.suspected, alpha=0.05, alpha_strata=0.05, plan=PLAN)
    pooled = [Finding(check="tail", required=True, outcome="passed", says="")]
    held = 0
    for seed in range(60):
        evidence = compared(LOSSLESS, replies=10, seed=seed)
        held += unsettled.unsettled(pooled, evidence, suspicion(evidence), suspicion) is not None
    assert held <= 14
