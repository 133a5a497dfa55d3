"""One sequence's outcome, and how often it errs."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from factories import Floats, drawn, greedy_mix, heated, population
from gates import residuals, sequential
from gates.checks import Levels
from gates.decision import Arms, Decision, Statistic, decide, totals
from gates.residuals import Cells, Residuals

LEVELS = Levels(reject=1e-4, gap=2.5e-4, outside=1e-4)


def arm(
    rng: np.random.Generator, mean: float, n: int = 20_000, sd: float = 1.0, replies: int = 500
) -> dict[str, Residuals]:
    return {"solo": Residuals(rng.normal(mean, sd, n), np.full(n, sd**2), np.arange(n) // (n // replies))}


def decided(
    candidate: dict[str, Residuals], stock: dict[str, Residuals], margin: float = 0.05, replies: int = 100
) -> Decision:
    return decide(Statistic(totals(Arms(candidate, stock)), margin), [], LEVELS, 0.95, replies)


def test_inside_its_margin_is_equivalent() -> None:
    """Both ends of the interval within, stock's own near zero."""
    rng = np.random.default_rng(1)
    found = decided(arm(rng, 0), arm(rng, 0))
    assert (found.outcome, found.immaterial, found.measured.against_stock, found.needs) == (
        "equivalent",
        False,
        False,
        None,
    )


def test_few_tokens_are_undecided_and_say_how_many_more() -> None:
    """About 14/.05² = 5,600 tokens in all for a residual of zero."""
    rng = np.random.default_rng(1)
    found = decided(arm(rng, 0, 2000, replies=200), arm(rng, 0))
    assert found.outcome == "undecided"
    assert found.needs is not None and 3_000 < found.needs < 12_000


def test_few_replies_are_undecided_however_many_their_tokens() -> None:
    """50 of the 100 replies asked for: as many tokens again."""
    rng = np.random.default_rng(1)
    found = decided(arm(rng, 0, 20_000, replies=50), arm(rng, 0))
    assert (found.outcome, found.needs) == ("undecided", 20_000)


def test_far_off_is_different() -> None:
    """The null is rejected, the two servers differ, and the interval leaves the margin."""
    rng = np.random.default_rng(1)
    assert decided(arm(rng, 0.1), arm(rng, 0)).outcome == "different"


def test_a_few_replies_can_show_a_difference() -> None:
    """Rejecting needs no hundred replies: a candidate that is far off is found at once."""
    rng = np.random.default_rng(1)
    assert decided(arm(rng, 1.0, 400, replies=10), arm(rng, 0)).outcome == "different"


def test_rejected_within_its_margin_is_immaterial() -> None:
    """Measurably different, and equivalent: more data alone must not turn one into the other."""
    rng = np.random.default_rng(1)
    found = decided(arm(rng, 0.02, 400_000), arm(rng, 0, 400_000))
    assert (found.outcome, found.immaterial) == ("equivalent", True)


def test_rejected_within_its_margin_by_few_replies_is_undecided() -> None:
    """Too few replies to say equivalent, and no reason to say different."""
    rng = np.random.default_rng(1)
    assert decided(arm(rng, 0.02, 400_000, replies=50), arm(rng, 0, 400_000)).outcome == "undecided"


def test_a_floor_that_both_share_is_not_a_difference() -> None:
    """Both off zero by the same: the difference to stock is what is judged."""
    rng = np.random.default_rng(1)
    found = decided(arm(rng, 0.03, 60_000), arm(rng, 0.03, 60_000))
    assert (found.outcome, found.measured.against_stock) == ("equivalent", True)
    assert found.measured.interval.value == pytest.approx(0, abs=0.02)


def test_stock_wholly_outside_the_margin_is_a_broken_set_up() -> None:
    """Neither equivalent nor different: the reference is not of these servers."""
    rng = np.random.default_rng(1)
    found = decided(arm(rng, 0.5), arm(rng, 0.3))
    assert (found.outcome, found.broken, found.needs) == ("undecided", True, None)


def test_a_fault_in_a_few_replies_widens_the_interval() -> None:
    """4 % of the replies off by 1.25, .05 in all: the predicted variance alone would often let it pass."""
    rng = np.random.default_rng(1)
    outcomes = Counter()
    for _ in range(60):
        faulty = arm(rng, 0, 20_000)
        bad = faulty["solo"].reply % 25 == 0
        faulty["solo"].d[bad] += 1.25
        outcomes[decided(faulty, arm(rng, 0)).outcome] += 1
    assert outcomes["equivalent"] <= binom.ppf(0.999, 60, 0.05)


IDS = np.tile(np.arange(20, dtype=np.int32), (1, 1))

TABLES = ((residuals.likelihood, 0.025), (residuals.first_choice, 0.01), (residuals.first_choice_weighted, 0.01))


def tables(p: Floats) -> list[tuple[Floats, Floats]]:
    """For each statistic, D of every context and cell, and v of every context."""
    k = 20
    found = []
    for statistic, _ in TABLES:
        by_cell = [
            statistic(Cells(np.log(p[:, :k]), p[:, :k], np.maximum(1 - p[:, :k].sum(1), 0), np.full(len(p), cell), IDS))
            for cell in range(k + 1)
        ]
        found.append((np.stack([d for d, _ in by_cell], axis=1), by_cell[0][1]))
    return found


def stream(of: list[tuple[Floats, Floats]], q: Floats, n: int, rng: np.random.Generator) -> list[Residuals]:
    """Residuals of n tokens drawn from q, in replies of 40 on average."""
    context, tokens = drawn(q, n, rng)
    reply = np.cumsum(rng.random(n) < 1 / 40)
    return [Residuals(d[context, np.minimum(tokens, 20)], v[context], reply) for d, v in of]


def verdict_of(candidate: list[Residuals], stock: list[Residuals], n: int) -> set[str]:
    """Outcomes of likelihood and of both first-choice statistics at the first n tokens."""
    arms = [Arms({"solo": one.first(n)}, {"solo": other.first(n)}) for one, other in zip(candidate, stock, strict=True)]
    variance = sequential.sums(arms[0].candidate["solo"]).variance
    likelihood = decide(Statistic(totals(arms[0]), 0.025 * variance), [], LEVELS, 0.95, 100)
    weighted = Statistic(totals(arms[2]), 0.03)
    return {likelihood.outcome, decide(Statistic(totals(arms[1]), 0.01), [weighted], LEVELS, 0.95, 100).outcome}


def test_lossless_streams_are_never_different_and_become_equivalent() -> None:
    """Of 40 looked at after every 8,000 tokens, none is called different; nearly all are equivalent by 96,000."""
    rng = np.random.default_rng(5)
    p = population(rng, 2000)
    of, ends = tables(p), Counter[str]()
    for _ in range(40):
        candidate, stock = stream(of, p, 96_000, rng), stream(of, p, 96_000, rng)
        seen = [verdict_of(candidate, stock, n) for n in range(8_000, 96_001, 8_000)]
        assert not any("different" in outcomes for outcomes in seen)
        ends["equivalent" if {"equivalent"} in seen else "undecided"] += 1
    assert ends["equivalent"] >= 36


@pytest.mark.parametrize(
    ("fault", "tokens"),
    [
        (lambda p: heated(p, 0.9), 20_000),
        (lambda p: heated(p, 1.15), 20_000),
        (lambda p: greedy_mix(p, 0.2), 20_000),
    ],
    ids=["temperature .9", "temperature 1.15", "a fifth greedy"],
)
def test_sampler_faults_are_different(fault: object, tokens: int) -> None:
    """In 20 of 20 streams within the tokens, and in none of them equivalent at any look."""
    rng = np.random.default_rng(6)
    p = population(rng, 2000)
    of = tables(p)
    for _ in range(20):
        candidate, stock = stream(of, fault(p), tokens, rng), stream(of, p, tokens, rng)  # type: ignore[operator]
        seen = [verdict_of(candidate, stock, n) for n in range(4_000, tokens + 1, 4_000)]
        assert any("different" in outcomes for outcomes in seen)
        assert {"equivalent"} not in seen


def test_a_statistic_without_margin_only_rejects() -> None:
    """The weighted first choice is off; the plain one's interval decides what is wholly inside."""
    rng = np.random.default_rng(1)
    plain = Statistic(totals(Arms(arm(rng, 0, 2000), arm(rng, 0, 2000))), 0.05)
    off = Statistic(totals(Arms(arm(rng, 0.4, 2000), arm(rng, 0, 2000))), 0.05)
    assert decide(plain, [off], LEVELS, 0.95, 100).outcome == "different"
    settled = dataclasses.replace(plain, totals=totals(Arms(arm(rng, 0), arm(rng, 0))))
    assert decide(settled, [off], LEVELS, 0.95, 100).immaterial
