"""honesty: tokens against the log-probabilities that are reported with them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from probing import OFTEN, TERMS, both, padded, probed, record, sampled, told
from scipy.stats import binom

from arms import P
from factories import Floats, heated
from gates.checks import honesty
from gates.checks.honesty import Settings
from gates.evidence import Evidence
from gates.finding import Finding
from gates.probes import NOTHING, Probed
from gates.residuals import UNKNOWN
from loadgen.record import SCORED_TOP_K, Logprob, Record

ASKED: dict[str, Any] = {"asked": {"logprobs": SCORED_TOP_K}}
REPORTED = np.array([0.5, 0.25, 0.15, 0.1])
REFERENCE = np.array([0.4, 0.4, 0.15, 0.05])


def test_every_term_is_one_on_the_mean() -> None:
    """Σ q̂ r/q̂ = 1 for the reference's law and each alternative, over the four tokens of a law and one of the others,
    which count as 10⁻⁶ at least."""
    mine, theirs = np.log(padded(REPORTED[None])), np.log(padded(REFERENCE[None]))
    mean = 0.0
    for token, chance in [*enumerate(REPORTED), (23, UNKNOWN)]:
        one = record(1, "logprobs", "p", [token], logprobs=told([token], mine), **ASKED)
        mean = mean + chance * np.exp(honesty.reported(probed([one], [theirs])).log_ratios[0])

    assert mean == pytest.approx(np.ones_like(mean), abs=2e-6)


def test_a_token_that_the_reference_does_not_tell_of_is_not_left_out() -> None:
    """Its part of the mean is Σ r over the tokens that are told of: no more than one, whatever else is listed."""
    mine = np.log(padded(REPORTED[None]))
    mean = 0.0
    for token, chance in [*enumerate(REPORTED), (23, UNKNOWN)]:
        found = probed([record(1, "logprobs", "p", [token], logprobs=told([token], mine), **ASKED)], [mine])
        if token == 3:
            found.scores[1]["logprob"] = np.nan
        (ratios,) = honesty.reported(found).log_ratios
        mean = mean + chance * np.exp(ratios)

    assert mean == pytest.approx(np.r_[1 - 0.9 * REPORTED[3], np.ones(len(ratios) - 1)], abs=2e-6)


def test_what_adds_up_to_more_than_one_is_no_report() -> None:
    """Log-probabilities above 0 make every law look less likely than what is reported: such a server reports nothing,
    and of a list that is no law no alternative is made."""
    mine, theirs = np.log(padded(REPORTED[None])), np.log(padded(REFERENCE[None]))
    above = [replace(one, logprob=5.0) for one in told([0], mine)]
    listed = [replace(one, top=[(token, None, 500.0) for token in range(20)]) for one in told([0], mine)]
    whole, law = (
        probed([record(1, "logprobs", "p", [0], logprobs=logprobs, **ASKED)], [theirs]) for logprobs in (above, listed)
    )
    assert honesty.reported(whole).n == 0
    assert finding(both("logprobs", whole, whole)).missing == "candidate reports chances above 1"
    assert not honesty.reported(law).log_ratios[0, 1:].any()


def replies(
    rng: np.random.Generator, sampling: Floats = P, reporting: Floats = P, count: int = 20, tokens: int = 200
) -> Probed:
    """From a server that samples by one table of laws and reports another, scored by P."""
    records: list[Record] = []
    laws: list[Floats] = []
    for number in range(count):
        path = rng.integers(len(P), size=tokens)
        ids = sampled(sampling[path], rng).tolist()
        own = told(ids, np.log(np.maximum(reporting[path], 1e-30)))
        records.append(record(number, "logprobs", str(number), ids, logprobs=own, **ASKED))
        laws.append(np.log(P[path]))
    return probed(records, laws)


def finding(found: Evidence) -> Finding:
    (only,) = honesty.check(found, Settings(), TERMS).findings
    return only


COLD = heated(P, 0.8)


def test_a_sampler_that_reports_another_temperature_is_found() -> None:
    """4,000 tokens at temperature .8, reported as of temperature 1: different, and named."""
    rng = np.random.default_rng(1)
    found = finding(both("logprobs", replies(rng), replies(rng, sampling=COLD)))

    assert found.outcome == "different"
    assert "temperature ≈ 0.8" in found.says


def test_a_report_of_what_is_sampled_is_honest() -> None:
    """At temperature .8, reported as such: passed. That it is not stock's is for other checks to say."""
    rng = np.random.default_rng(2)
    found = finding(both("logprobs", replies(rng), replies(rng, sampling=COLD, reporting=COLD)))

    assert found.outcome == "passed"
    assert found.says == "tokens fall as the log-probabilities reported with them say"


def test_a_report_of_another_model_is_found_by_the_references_law() -> None:
    """Tokens are the reference's, and a flatter law is reported."""
    rng = np.random.default_rng(3)
    found = finding(both("logprobs", replies(rng), replies(rng, reporting=heated(P, 2.0))))

    assert found.outcome == "different"


def test_how_an_engine_reports_is_no_difference() -> None:
    """Where stock's tokens are at temperature .6 too, of 60 comparisons at .05 at most eight (99.9 % binomial) are
    called different, though the candidate alone is off its own report in nearly all."""
    rng = np.random.default_rng(4)
    pairs = [[replies(rng, sampling=heated(P, 0.6), count=3, tokens=60) for _ in range(2)] for _ in range(60)]
    alone = [honesty.reported(own).p_value for _, own in pairs]
    found = [honesty.check(both("logprobs", *pair), Settings(), OFTEN).findings[0].outcome for pair in pairs]

    assert sum(p <= 0.05 for p in alone) > 40
    assert found.count("different") <= binom.ppf(0.999, 60, 0.05)


def test_the_two_sample_half_is_at_its_level() -> None:
    """Both at temperature .8: P ≤ .05 in at most 40 of 500, and ≤ .01 in at most 12 (99.9 % binomial)."""
    rng = np.random.default_rng(5)
    cold = honesty.reported(replies(rng, sampling=COLD, count=40))
    chances = []
    for _ in range(500):
        sides = [_some(cold, rng) for _ in range(2)]
        chances.append(sides[0].p_against(sides[1]))

    assert sum(p <= 0.05 for p in chances) <= binom.ppf(0.999, 500, 0.05)
    assert sum(p <= 0.01 for p in chances) <= binom.ppf(0.999, 500, 0.01)


def _some(found: honesty.Reported, rng: np.random.Generator) -> honesty.Reported:
    """Ten replies of 100 tokens, drawn anew from these tokens."""
    rows = rng.integers(found.n, size=1000)
    return honesty.Reported(found.log_ratios[rows], np.repeat(np.arange(10), 100))


def test_an_honest_server_is_called_different_no_more_often_than_the_level_says() -> None:
    """Of 500 servers, 200 tokens each: E ≥ 20 in at most 40 (99.9 % binomial at .05)."""
    rng = np.random.default_rng(6)
    chances = [honesty.reported(replies(rng, count=2, tokens=100)).p_value for _ in range(500)]

    assert sum(p <= 0.05 for p in chances) <= binom.ppf(0.999, 500, 0.05)


def test_the_alternatives_listed_do_not_depend_on_the_token() -> None:
    """A server that lists the token drawn beside the likeliest lists one more where it is none of them: that one is
    left out."""
    top: list[tuple[int | None, str | None, float | None]] = [(7, None, -3.0), (0, None, -0.1), (1, None, -2.5)]
    one = Logprob(token_id=7, token=None, logprob=-3.0, top=top)
    found = record(1, "logprobs", "p", [7], logprobs=[one], asked={"logprobs": True, "top_logprobs": 2})

    assert honesty.as_rows(found, 1)["ids"][0].tolist()[:3] == [0, 1, -1]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [({"logprobs": 5}, 5), ({"logprobs": True, "top_logprobs": 20}, 20), ({"logprobs": True}, None), ({}, None)],
)
def test_how_many_alternatives_were_asked_for(asked: dict[str, Any], expected: int | None) -> None:
    """Completions ask for a number, chat for a truth value and a number apart."""
    assert honesty.asked_alternatives(record(1, "logprobs", "p", [1], asked=asked)) == expected


def quiet(found: Probed) -> Probed:
    """The same tokens, reported without log-probabilities."""
    records = tuple(record(n, "logprobs", one.prompt_id, one.token_ids, **ASKED) for n, one in enumerate(found.records))
    return Probed(records, found.scores)


def test_without_reports_of_both_it_says_what_is_missing() -> None:
    """Undecided: without stock's own nobody knows whether it is how the engine reports."""
    rng = np.random.default_rng(7)
    whole, short = replies(rng, count=4), replies(rng, count=1, tokens=20)

    assert finding(both("logprobs", whole, quiet(whole))).missing == (
        "candidate reports no log-probabilities of its own"
    )
    assert finding(both("logprobs", quiet(whole), whole)).missing == "stock reports no log-probabilities of its own"
    assert finding(both("logprobs", whole, short)).missing == (
        "candidate reports log-probabilities of 20 scored tokens, where 50 are the fewest that tell"
    )
    assert "no probe logprobs of candidate" in (finding(both("logprobs", whole, NOTHING)).missing or "")
