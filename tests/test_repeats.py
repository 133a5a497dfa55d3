"""Repeated draws: the estimate of ‖q − p‖², its chance by simulation and far in the tail, and of both servers."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import binom, multinomial, multivariate_hypergeom

from gates import repeats
from gates.repeats import Draws, Pair
from gates.residuals import Floats
from gates.selftest import population

P = np.array([0.5, 0.25, 0.125, 0.125])
Q = np.array([0.4, 0.4, 0.15, 0.05])


def count_vectors(n: int, cells: int) -> Iterator[tuple[int, ...]]:
    """Every way in which n draws can fall into the cells."""
    for bars in itertools.combinations(range(n + cells - 1), cells - 1):
        edges = (-1, *bars, n + cells - 1)
        yield tuple(right - left - 1 for left, right in itertools.pairwise(edges))


def all_draws(n: int, q: Floats) -> tuple[np.ndarray, Floats]:
    """(vectors, cells) and the chance of each under q."""
    vectors = np.array(list(count_vectors(n, len(q))))
    return vectors, multinomial.pmf(vectors, n, q)


def drawn(q: Floats, p: Floats, n: int, rng: np.random.Generator) -> Draws:
    """n draws from each row of q, counted against p's."""
    return Draws([("prompt", (place,)) for place in range(len(p))], rng.multinomial(n, q), p)


def coarse(p: Floats, listed: int = 20) -> Floats:
    """(m, listed + 1): the likeliest, and the rest together."""
    found = np.concatenate([p[:, :listed], 1 - p[:, :listed].sum(axis=1, keepdims=True)], axis=1)
    return np.asarray(np.maximum(found, 0) / np.maximum(found, 0).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("q", [P, Q, np.array([0.0, 0.0, 0.0, 1.0])], ids=["lossless", "off", "degenerate"])
def test_q_is_unbiased(q: Floats) -> None:
    """Over every count vector of 6 draws, weighted by its chance, the mean of Q is ‖q − p‖²."""
    vectors, chance = all_draws(6, q)
    values = np.array([repeats.distances(one[None], P[None])[0] for one in vectors])

    assert chance @ values == pytest.approx(((q - P) ** 2).sum(), abs=1e-12)


def test_the_noise_of_q_is_the_formula_that_prefixes_are_chosen_by() -> None:
    """Var Q = 2(s₂ − 2s₃ + s₂²)/(n(n − 1)) where the draws come from p, s_m = Σ p^m."""
    n = 6
    vectors, chance = all_draws(n, P)
    values = np.array([repeats.distances(one[None], P[None])[0] for one in vectors])
    s2, s3 = (P**2).sum(), (P**3).sum()

    assert chance @ values**2 == pytest.approx(2 * (s2 - 2 * s3 + s2**2) / (n * (n - 1)), rel=1e-10)


def test_places_are_pooled_by_their_pairs_of_draws() -> None:
    """Weights are as n(n − 1) and add up to 1."""
    expected = np.array([2.0, 6.0, 12.0]) / 20

    assert repeats.weights(np.array([2, 3, 4])) == pytest.approx(expected)


def test_frozen_noise_moves_the_pooled_q_as_far_as_the_margin_says() -> None:
    """moved_by at sd .1 is within 5 % of the mean of Σw‖q − p‖² over 400 frozen noises of that sd."""
    rng = np.random.default_rng(1)
    laws = population.laws(40, rng, open_share=1.0)
    p = coarse(laws)
    found = drawn(p, p, 64, rng)
    moved = [((coarse(population.disturbed(laws, 0.1, rng)) - p) ** 2).sum(axis=1).mean() for _ in range(400)]

    assert repeats.moved_by(0.1, found) == pytest.approx(np.mean(moved), rel=0.05)


def test_the_margin_grows_with_the_square_of_the_noise() -> None:
    """By the formula sd²·Σ_{c≤k} p²(1 − 2p + s₂), at one law of three listed cells and the rest."""
    found = Draws([("prompt", ())], np.array([[8, 4, 2, 2]]), P[None])
    s2 = 0.25 + 0.0625 + 2 * 0.015625
    listed = sum(p**2 * (1 - 2 * p + s2) for p in P[:-1])

    assert repeats.moved_by(0.2, found) == pytest.approx(0.04 * listed)


def test_a_tree_counts_what_followed_what() -> None:
    """Every reply counts at the place before each of its tokens."""
    assert repeats.tree([[1, 2], [1, 3], [1, 2, 4], []]) == {
        (): Counter({1: 3}),
        (1,): Counter({2: 2, 3: 1}),
        (1, 2): Counter({4: 1}),
    }


def test_the_chance_of_a_pooled_q_is_the_exact_one() -> None:
    """At one place of 4 tokens, against the sum over all count vectors: within four standard errors of 2,000 draws."""
    rng = np.random.default_rng(1)
    vectors, chance = all_draws(24, P)
    values = repeats.distances(vectors, np.tile(P, (len(vectors), 1)))
    for counts in ([13, 5, 3, 3], [9, 9, 3, 3], [8, 10, 2, 4], [7, 7, 5, 5]):
        found = Draws([("prompt", ())], np.array([counts]), P[None])
        exact = float(chance[values >= repeats.pooled(found) - 1e-12].sum())
        error = math.sqrt(exact * (1 - exact) / repeats.SIMULATED)

        assert exact > 0.05  # from there on it is counted
        assert repeats.p_value(found, rng) == pytest.approx(exact, abs=4 * error + 1e-3)


GRID = 960
"""Q of 16 draws from P is a multiple of 1/960: its sum over places has an exact law, by repeated convolution."""

PLACES, N = 40, 16


def exact_tail() -> tuple[Floats, Floats]:
    """(totals, P(ΣQ ≥ total)) over PLACES places of N draws from P."""
    vectors, chance = all_draws(N, P)
    steps = np.rint(repeats.distances(vectors, np.tile(P, (len(vectors), 1))) * GRID).astype(int)
    lowest = steps.min()
    one = np.bincount(steps - lowest, weights=chance)
    law = np.ones(1)
    for _ in range(PLACES):
        law = np.convolve(law, one)
    return (np.arange(len(law)) + PLACES * lowest) / GRID, np.cumsum(law[::-1])[::-1]


@pytest.mark.parametrize("chance", [0.3, 0.03, 1e-3, 1e-4, 1e-5])
def test_the_tail_is_the_exact_one_far_beyond_what_was_simulated(chance: float) -> None:
    """From 2,000 simulated draws a place P is within a factor of 1.6 of the exact one down to 10⁻⁵, five times over."""
    totals, tail = exact_tail()
    least = int(np.argmax(tail <= chance))
    rng = np.random.default_rng(3)
    ratios = [beyond(float(totals[least]), rng) / tail[least] for _ in range(5)]

    assert max(max(ratios), 1 / min(ratios)) < 1.6


def test_where_the_simulated_values_end_the_chance_is_bounded_from_above() -> None:
    """At an exact 10⁻⁸ the answer may be too large, never under half of it."""
    totals, tail = exact_tail()
    least = int(np.argmax(tail <= 1e-8))
    rng = np.random.default_rng(4)

    assert min(beyond(float(totals[least]), rng) for _ in range(5)) > tail[least] / 2


def beyond(total: float, rng: np.random.Generator) -> float:
    counts = rng.multinomial(N, P, size=(repeats.SIMULATED, PLACES))
    return repeats.beyond(total - 0.5 / GRID, repeats.distances(counts, np.tile(P, (PLACES, 1))))


def test_equal_servers_that_both_miss_the_reference_differ_no_more_often_than_the_level_says() -> None:
    """Both draw from q ≠ p, the candidate twice as often: P ≤ .05 in at most 40 of 500 comparisons (99.9 % binomial),
    in which each alone is off the reference nearly always."""
    rng = np.random.default_rng(5)
    p = np.tile(P, (10, 1))
    q = np.tile(Q, (10, 1))
    pairs = [Pair(drawn(q, p, 40, rng), drawn(q, p, 20, rng)) for _ in range(500)]
    chances = np.array([pair.p_value(rng) for pair in pairs])
    alone = [repeats.p_value(pair.candidate, rng) for pair in pairs[:50]]

    assert (chances <= 0.05).sum() <= binom.ppf(0.999, 500, 0.05)
    assert (chances <= 0.01).sum() <= binom.ppf(0.999, 500, 0.01)
    assert (chances > 0.5).mean() == pytest.approx(0.5, abs=0.1)
    assert np.mean(np.array(alone) <= 0.01) > 0.9


def test_the_chance_of_a_swap_is_that_of_every_split() -> None:
    """One place, 5 draws of the candidate's and 4 of stock's: all ways to deal out the nine, by scipy's law."""
    candidate, stock = np.array([4, 1, 0, 0]), np.array([1, 1, 1, 1])
    together, law = candidate + stock, multivariate_hypergeom(candidate + stock, candidate.sum())
    seen = repeats.distances(candidate[None], P[None])[0]
    exact = sum(
        law.pmf(split)
        for split in itertools.product(*(range(count + 1) for count in together))
        if sum(split) == candidate.sum() and repeats.distances(np.array([split]), P[None])[0] >= seen - 1e-12
    )
    pair = Pair(*(Draws([("a", ())], counts[None], P[None]) for counts in (candidate, stock)))
    chances = [pair.p_value(np.random.default_rng(seed)) for seed in range(8)]

    assert 0.02 < exact < 0.5
    assert np.mean(chances) == pytest.approx(exact, abs=4 * math.sqrt(exact / (8 * repeats.SIMULATED)) + 1e-3)


def test_one_server_off_is_told_from_stock() -> None:
    """30 places of 60 draws: a candidate off by ‖q − p‖² ≈ .04 stands out of stock's own at 10⁻⁴."""
    rng = np.random.default_rng(6)
    p, q = np.tile(P, (30, 1)), np.tile(Q, (30, 1))

    assert Pair(drawn(q, p, 60, rng), drawn(p, p, 60, rng)).p_value(rng) < 1e-4
    assert Pair(drawn(p, p, 60, rng), drawn(q, p, 60, rng)).p_value(rng) > 0.9


def test_the_spread_of_a_gap_is_how_it_varies() -> None:
    """The root mean square of `spread` is within 15 % of the standard deviation of the gap over 400 comparisons."""
    rng = np.random.default_rng(7)
    p, q = np.tile(P, (20, 1)), np.tile(Q, (20, 1))
    pairs = [Pair(drawn(q, p, 32, rng), drawn(p, p, 32, rng)) for _ in range(400)]

    assert np.sqrt(np.mean([pair.spread() ** 2 for pair in pairs])) == pytest.approx(
        np.std([pair.gap for pair in pairs]), rel=0.15
    )


def test_a_pair_holds_the_places_that_both_came_to() -> None:
    """Matched by place, whatever the order."""
    one = Draws([("a", ()), ("b", ())], np.array([[2, 0, 0, 0], [0, 2, 0, 0]]), np.stack([P, P]))
    other = Draws([("b", ()), ("c", ())], np.array([[0, 0, 2, 0], [0, 0, 0, 2]]), np.stack([P, P]))
    pair = Pair.of(one, other)

    assert (pair.candidate.places, pair.stock.places) == ([("b", ())], [("b", ())])
    assert (pair.candidate.counts.tolist(), pair.stock.counts.tolist()) == ([[0, 2, 0, 0]], [[0, 0, 2, 0]])


def frozen(kl_sd: float, prefixes: int, rng: np.random.Generator, scorer_sd: float = 0.0) -> tuple[Draws, Draws]:
    """64 draws of a candidate whose model errs, and of stock, at the best of 20,000 prefixes by λ, counted against a
    scorer that errs too."""
    laws = best_prefixes()[:prefixes]
    scored = coarse(population.disturbed(laws, scorer_sd, rng) if scorer_sd else laws)
    candidate = coarse(population.disturbed(laws, kl_sd, rng) if kl_sd else laws)
    return drawn(candidate, scored, 64, rng), drawn(coarse(laws), scored, 64, rng)


@functools.cache
def best_prefixes() -> Floats:
    laws = population.laws(20_000, np.random.default_rng(1))
    return np.asarray(laws[np.argsort(-weight(laws))[:200]])


def weight(p: Floats) -> Floats:
    s2, s3 = (p**2).sum(axis=1), (p**3).sum(axis=1)
    listed = p[:, :20]
    moved = (listed**2 * (1 - 2 * listed + s2[:, None])).sum(axis=1)
    return np.asarray(moved / np.sqrt(np.maximum(s2 - 2 * s3 + s2**2, 1e-12)))


KL_005, KL_01 = 0.229, 0.324
"""sd of frozen noise on the logits that makes such a KL a token."""


def test_noise_of_kl_005_is_found_in_5000_draws() -> None:
    """Nine of ten models off by KL .005 are further from the reference than chance makes it, at .001; and none of ten
    right ones is."""
    rng = np.random.default_rng(8)
    off = [repeats.p_value(frozen(KL_005, 78, rng)[0], rng) for _ in range(10)]
    right = [repeats.p_value(frozen(0, 78, rng)[0], rng) for _ in range(10)]

    assert sum(p <= 1e-3 for p in off) >= 9
    assert sum(p <= 1e-3 for p in right) == 0


def test_noise_of_kl_01_is_found_in_1500_draws() -> None:
    """Of twenty models off by KL .01 at least seventeen, at .001."""
    rng = np.random.default_rng(9)

    assert sum(repeats.p_value(frozen(KL_01, 23, rng)[0], rng) <= 1e-3 for _ in range(20)) >= 17


def test_a_noisy_scorer_is_no_difference() -> None:
    """Scored with noise of sd .1 both are off the reference; of 40 right candidates at most 7 are further off than
    stock at .05 (99.9 % binomial)."""
    rng = np.random.default_rng(10)
    chances = [Pair(*frozen(0, 24, rng, scorer_sd=0.1)).p_value(rng) for _ in range(40)]

    assert sum(p <= 0.05 for p in chances) <= 7
