"""tail, junk, pit and eos as checks: what they call different, what they pass, and how often they are wrong."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom

from arms import EOS, LOSSLESS, Law, P, arm, compared
from factories import heated
from gates import checks, reading, tokens
from gates.checks import Checked, Levels, Terms, eos, pit, tail
from gates.evidence import Arm, Evidence
from gates.finding import Finding
from gates.pit import Uniformity

ONE = Levels(reject=1e-4, gap=2.5e-4, outside=1e-4)
TERMS = Terms(required=True, pooled=ONE, profile=ONE, p_value=6e-5, equivalent=0.95, replies=100, profile_replies=30)
OFTEN = Levels(reject=0.05, gap=0.05, outside=0.05)
LOOSE = dataclasses.replace(TERMS, pooled=OFTEN, profile=OFTEN, p_value=0.05)

HAZARD = 1 / 40
ENDING = Law(P, hazard=HAZARD)


def asked(name: str, found: Evidence, terms: Terms = TERMS) -> Checked:
    module = checks.load(name)
    return module.check(found, module.Settings.model_validate({}), terms)


def pooled(name: str, found: Evidence, terms: Terms = TERMS) -> Finding:
    return asked(name, found, terms).findings[0]


def normalized(p: np.ndarray) -> np.ndarray:
    return np.asarray(p / p.sum(axis=1, keepdims=True))


NUCLEUS = Law(normalized(np.where(np.cumsum(P, axis=1) - P < 0.95, P, 0)))
LIKELIEST = Law(normalized(np.where(np.arange(P.shape[1]) < 20, P, 0)))
JUNK = Law(0.98 * P + 0.02 / P.shape[1])
HOT = Law(heated(P, 0.8))


@pytest.mark.parametrize(
    ("name", "law", "says"),
    [
        ("tail", NUCLEUS, "truncation"),
        ("junk", LIKELIEST, "fewer tokens beyond the listed"),
        ("junk", JUNK, "corruption"),
        ("pit", HOT, "do not fall evenly"),
        ("eos", dataclasses.replace(ENDING, readiness=1.5), "shorter"),
        ("eos", dataclasses.replace(ENDING, readiness=0.6), "longer"),
    ],
)
def test_each_check_finds_its_fault(name: str, law: Law, says: str) -> None:
    """The fault that the check is there for, at 1,000 replies; and it says what it is."""
    stock = dataclasses.replace(law, q=P, readiness=1.0)
    found = pooled(name, compared(law, stock, replies=1000))
    assert found.outcome == "different"
    assert says in found.says


@pytest.mark.parametrize("name", ["tail", "junk", "pit"])
def test_a_lossless_candidate_passes(name: str) -> None:
    """They have no margin, so they pass and are never equivalent; the estimate carries its tokens."""
    found = pooled(name, compared(LOSSLESS))
    assert (found.outcome, found.margin, found.missing) == ("passed", None, None)
    assert found.estimate is not None and found.estimate.n > 1000


def test_eos_is_a_hazard_ratio_with_the_error_of_its_stops() -> None:
    """The estimate is stops over expected stops, minus one, and equivalent where 1,000 stops hold it inside a quarter;
    too few leave it undecided."""
    found = compared(ENDING, ENDING, replies=1000)
    rows = found.candidate.passes[0].scored.rows
    stops, expected = int((rows["token_id"] == EOS).sum()), HAZARD * len(rows)
    one = pooled("eos", found)
    assert one.estimate is not None and one.margin == pytest.approx(0.25)
    assert one.estimate.value == pytest.approx(stops / expected - 1, abs=1e-5)
    assert one.outcome == "equivalent"
    few = asked("eos", compared(ENDING, ENDING, replies=120))
    assert (few.findings[0].outcome, few.findings[0].missing) == ("undecided", None)
    assert few.needs_tokens is not None and few.needs_tokens > 0


def test_without_known_ends_eos_is_undecided_and_says_what_is_missing() -> None:
    """Replies that only break off show no id that ends one."""
    found = pooled("eos", compared(LOSSLESS, replies=10))
    assert (found.outcome, found.missing) == ("undecided", eos.NO_END)


def test_ends_are_what_stopped_replies_end_with() -> None:
    """The id that stopped replies end with and never hold before; none where replies break off, or where the server
    leaves the end out, so that they seem to end with any token."""
    rng = np.random.default_rng(3)
    assert reading._end_ids(arm("stock", ENDING, 200, rng)) == frozenset({EOS})
    assert reading._end_ids(arm("stock", LOSSLESS, 50, rng)) == frozenset()
    broken_off = arm("stock", LOSSLESS, 50, rng)
    assert reading._end_ids(_stopped(broken_off)) == frozenset()


def _stopped(one: Arm) -> Arm:
    only = one.passes[0]
    replies = [dataclasses.replace(reply, stopped=True) for reply in only.replies]
    return dataclasses.replace(one, passes=[dataclasses.replace(only, replies=replies)])


def test_pit_asks_for_tokens_enough_for_its_law() -> None:
    """χ² holds at the level of the check from some 1,000 open positions on; under that it is undecided and says how
    many tokens more it would take."""
    few = asked("pit", compared(HOT, replies=15))
    open_positions = tokens.of(compared(HOT, replies=15).candidate).uniformity.n
    assert 0 < open_positions < pit.LEAST_TOKENS
    assert (few.findings[0].outcome, few.findings[0].missing) == ("undecided", None)
    assert "1,000 are needed" in few.findings[0].says
    scored = 15 * 160
    assert few.needs_tokens == pytest.approx(scored * (pit.LEAST_TOKENS / open_positions - 1), rel=0.2)


def test_pit_passes_what_falls_as_stock_does() -> None:
    """Both servers at temperature .8: neither falls evenly, which says something of the reference alone."""
    found = pooled("pit", compared(HOT, HOT, replies=1000))
    assert found.outcome == "passed"
    assert "nor surely otherwise than stock's own" in found.says


def test_pit_does_not_depend_on_when_it_is_judged() -> None:
    """Its randomness is the data's: judging the same replies again gives the same p-value."""
    first, second = (tokens.of(compared(LOSSLESS, replies=20).candidate).uniformity for _ in range(2))
    assert (first.n, first.sums.tolist()) == (second.n, second.sums.tolist())


COMPARISONS = 60


@pytest.mark.parametrize(
    ("name", "law", "replies", "levels"),
    [
        ("tail", LOSSLESS, 40, 2),  # the sequence, and the exact count
        ("junk", LOSSLESS, 40, 1),
        ("pit", LOSSLESS, 60, 1),
        ("eos", ENDING, 120, 2),  # the sequence, and lying outside the margin
    ],
)
def test_each_check_is_wrong_no_more_often_than_its_level(name: str, law: Law, replies: int, levels: int) -> None:
    """Of 60 comparisons of a server with itself, at .05 for each way to reject instead of 1e-4; binomial (.999)."""
    seen = [pooled(name, compared(law, law, replies, seed), LOOSE) for seed in range(COMPARISONS)]
    assert all(one.estimate is not None for one in seen)  # each could have rejected
    assert sum(one.outcome == "different" for one in seen) <= binom.ppf(0.999, COMPARISONS, levels * 0.05)


PAIRS = 4000
SHARED = {"pit": 16.0, "tail": 2.3}
"""What a reference that is a little off makes of 200,000 and 400,000 tokens of either server: a noncentrality of χ²,
and standard deviations too few in the tail. Where both servers share it, it says nothing of the candidate."""


def test_two_servers_that_share_a_floor_are_not_told_apart_by_pit() -> None:
    """At .001 each; the rule "rejects while stock does not" is wrong ten times as often or more, so that this can
    fail."""
    rng = np.random.default_rng(8)
    n = 50_000
    shift = np.sqrt(SHARED["pit"] / n / 4)  # a term's mean
    arms = [[Uniformity(rng.normal(n * shift, np.sqrt(n), 4), n) for _ in range(PAIRS)] for _ in range(2)]
    pairs = list(zip(*arms, strict=True))
    wrong = sum(pit.p_value(own, stock) <= 0.001 for own, stock in pairs)
    race = sum(own.p_value <= 0.001 and stock.p_value > 0.01 for own, stock in pairs)
    assert wrong <= binom.ppf(0.999, PAIRS, 0.001)
    assert race > 10 * binom.ppf(0.999, PAIRS, 0.001)


def test_two_servers_that_share_a_floor_are_not_told_apart_by_tail() -> None:
    """As for pit."""
    rng = np.random.default_rng(8)
    expected = 1200.0
    hits = rng.poisson(expected - SHARED["tail"] * np.sqrt(expected), (PAIRS, 2)).tolist()
    pairs = [((own, expected), (stock, expected)) for own, stock in hits]
    wrong = sum(tail.p_value(own, stock) <= 0.001 for own, stock in pairs)
    race = sum(tail.too_few(*own) <= 0.001 and tail.too_few(*stock) > 0.01 for own, stock in pairs)
    assert wrong <= binom.ppf(0.999, PAIRS, 0.001)
    assert race > 10 * binom.ppf(0.999, PAIRS, 0.001)
