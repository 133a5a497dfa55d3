"""Confidence sequences: their formulas, and how often they miss."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from gates import sequential
from gates.residuals import Residuals
from gates.sequential import Interval, Sums


def flat(n: int, total: float, variance: float, replies: int = 200) -> Sums:
    return Sums(n, replies, total, variance * n, variance * n)


def test_half_width_solves_the_mixture_martingale() -> None:
    """At S = w the normal mixture Π reaches 1/α: √(ρ/(V+ρ))·exp(S²/(2(V+ρ))) = 1/α."""
    for variance, rho, alpha in [(10.0, 3.0, 0.05), (5000.0, 900.0, 0.001), (0.0, 1.0, 0.5)]:
        w = sequential.half_width(variance, rho, alpha)
        mixture = math.sqrt(rho / (variance + rho)) * math.exp(w**2 / (2 * (variance + rho)))
        assert mixture == pytest.approx(1 / alpha)


def test_the_mixture_is_tight_where_it_was_tuned() -> None:
    """No ρ within a factor of three gives a width more than 1 % smaller at the variance asked for."""
    for alpha in (0.05, 0.001):
        tuned = sequential.half_width(1000, sequential.mixture(1000, alpha), alpha)
        others = [
            sequential.half_width(1000, sequential.mixture(1000 * f, alpha), alpha) for f in np.geomspace(1 / 3, 3, 21)
        ]
        assert tuned <= 1.01 * min(others)


def test_reach_is_the_squared_width_a_unit_of_variance() -> None:
    """At level .05 a tuned sequence is 3.03 standard deviations wide."""
    assert math.sqrt(sequential.reach(0.05)) == pytest.approx(3.035, abs=0.005)


def test_spread_is_the_largest_of_the_three_variances() -> None:
    """Predicted; of tokens about their mean; of replies about theirs. Here whole replies differ, and the last is it."""
    d, reply = np.array([1.0, 1.0, -1.0, -1.0]), np.array([0, 0, 1, 1])
    found = sequential.sums(Residuals(d, np.full(4, 0.5), reply))
    assert (found.n, found.replies, found.total, found.predicted, found.spread) == (4, 2, 0.0, 2.0, 8.0)


def test_spread_counts_only_replies_with_tokens() -> None:
    """Reply numbers may have gaps: a reply without scored tokens is none of them."""
    assert sequential.sums(Residuals(np.ones(2), np.ones(2), np.array([3, 9]))).replies == 2


def test_a_margin_of_zero_still_gives_an_interval() -> None:
    """Where the reference is sure of every token there is nothing to tune to."""
    found = sequential.estimating(flat(100, 0.0, 0.0), 0.0, 0.05)
    assert found.low < 0 < found.high


def test_difference_of_intervals_holds_whenever_both_do() -> None:
    """[low − high, high − low]."""
    assert Interval(3, 2, 5).minus(Interval(1, 0, 2)) == Interval(2, 0, 5)


def test_gap_is_blind_to_what_both_share() -> None:
    """A residual of .1 on both sides is no difference; .1 on one side is, at enough tokens."""
    shared, none = flat(20_000, 2000.0, 1.0), flat(20_000, 0.0, 1.0)
    assert not sequential.gap(shared, shared, 0.025, 0.001).excludes_zero
    assert sequential.gap(shared, none, 0.025, 0.001).excludes_zero


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_a_sequence_misses_at_most_at_its_level_over_all_looks(alpha: float) -> None:
    """Looked at after each of 400 blocks of unit variance: at most α of 2,000 miss, and not absurdly few."""
    rng = np.random.default_rng(8)
    sums = np.cumsum(rng.standard_normal((2000, 400)), axis=1)
    rho = sequential.mixture(100, alpha)
    width = np.array([sequential.half_width(n, rho, alpha) for n in range(1, 401)])
    missed = int((np.abs(sums) > width).any(axis=1).sum())
    assert missed <= binom.ppf(0.999, 2000, alpha)
    assert missed >= 2000 * alpha / 5


def test_estimates_cover_also_where_replies_differ() -> None:
    """Where the mean varies from reply to reply, the predicted variance misses often, the wider one does not."""
    rng = np.random.default_rng(9)
    misses = {"predicted": 0, "spread": 0}
    reply = np.repeat(np.arange(150), 40)
    for _ in range(400):
        d = rng.standard_normal(6000) + np.repeat(rng.normal(0, 0.6, 150), 40)
        found = sequential.sums(Residuals(d, np.ones(6000), reply))
        misses["predicted"] += sequential.rejecting(found, 0.05, 0.05).excludes_zero
        misses["spread"] += sequential.estimating(found, 0.05, 0.05).excludes_zero
    assert misses["predicted"] > 100
    assert misses["spread"] <= binom.ppf(0.999, 400, 0.05)
