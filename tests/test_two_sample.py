"""Repeated draws of two servers without any law: statistic, permutation, error rate, and whole comparisons."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from gates import repeats, report
from gates.checks.two_sample import Pairs, distance
from gates.finding import Finding
from loadgen.cli import simulated
from loadgen.compare import Load
from loadgen.profile import load, overridden
from loadgen.record import Run
from servers.sim.settings import Settings

P = np.array([0.5, 0.25, 0.15, 0.1])
Q = np.array([0.4, 0.35, 0.15, 0.1])


def test_u_is_the_mean_over_pairs_of_draws() -> None:
    """By enumeration of all pairs: agreement within each server's draws, less twice that between them."""
    own, stock = [0, 0, 1, 2, 0], [1, 1, 0, 3]
    within = [np.mean([x == y for x, y in itertools.permutations(draws, 2)]) for draws in (own, stock)]
    between = np.mean([x == y for x in own for y in stock])
    a, b = (np.bincount(draws, minlength=4) for draws in (own, stock))
    assert float(distance(a, b)) == pytest.approx(sum(within) - 2 * between)


def test_u_is_unbiased_for_the_squared_distance() -> None:
    """Over all outcomes of two and two draws from two laws of four tokens: Σ P(outcome) U = ‖q − p‖²."""
    mean = 0.0
    for w, x, y, z in itertools.product(range(4), repeat=4):
        u = float(distance(np.bincount([w, x], minlength=4), np.bincount([y, z], minlength=4)))
        mean += Q[w] * Q[x] * P[y] * P[z] * u
    assert mean == pytest.approx(float(((Q - P) ** 2).sum()))


def test_swaps_are_all_ways_to_deal_the_draws() -> None:
    """Of six draws, three each: the simulated chance of each U against the twenty ways, enumerated."""
    draws = np.array([0, 0, 0, 1, 1, 2])
    own, stock = np.bincount(draws[:3], minlength=3), np.bincount(draws[3:], minlength=3)
    ways = [
        float(distance(np.bincount(draws[list(kept)], minlength=3), np.bincount(np.delete(draws, kept), minlength=3)))
        for kept in itertools.combinations(range(6), 3)
    ]
    swaps = Pairs([own], [stock]).by_swaps(np.random.default_rng(1))[:, 0]
    for value in set(np.round(ways, 9)):
        share = float(np.isclose(ways, value).mean())
        assert np.isclose(swaps, value).mean() == pytest.approx(share, abs=0.05)


def drawn(q: np.ndarray, p: np.ndarray, rng: np.random.Generator, places: int = 12, n: int = 32) -> Pairs:
    return Pairs(list(rng.multinomial(n, q, size=places)), list(rng.multinomial(n, p, size=places)))


def test_one_law_is_rejected_as_often_as_its_level_says() -> None:
    """Of 200 comparisons of servers that draw alike; and two laws .14 apart are found in nearly all of 20."""
    rng = np.random.default_rng(5)

    def p_value(q: np.ndarray, p: np.ndarray, places: int = 12, n: int = 32) -> float:
        found = drawn(q, p, rng, places, n)
        return repeats.beyond(found.gap, found.by_swaps(rng))

    false = sum(p_value(P, P) <= 0.05 for _ in range(200))
    assert binom.ppf(0.001, 200, 0.05) <= false <= binom.ppf(0.999, 200, 0.05)
    assert sum(p_value(Q, P, places=60, n=64) <= 0.001 for _ in range(20)) >= 18


def finding(out: Path, fault: str | None) -> tuple[str, Finding]:
    """Nothing is scored: the reference tells no log-probabilities of a prompt."""
    profile = overridden(load("team"), {"requests": 32})
    profile = profile.model_copy(update={"prompts": profile.prompts.model_copy(update={"max_words": 40})})
    engines = {"stock": Settings(seed=1, max_logprobs=0), "candidate": Settings(seed=2, fault=fault)}
    simulated.compare(engines, Load((profile,), 1, seed=3), out, probes=("repeat_prefix", "greedy"))
    run = Run.open(out)
    verdict = report.judged([run], "unscored").verdict
    assert verdict is not None and list(run.scores()) == []
    return verdict.outcome, next(one for one in verdict.findings if one.check == "two_sample")


def test_servers_without_log_probabilities_are_compared_by_their_draws(tmp_path: Path) -> None:
    """A smaller model is different; a lossless one is undecided, never equivalent, and it says how weak that is."""
    outcome, smaller = finding(tmp_path / "smaller", "smaller")
    assert (outcome, smaller.outcome) == ("different", "different")
    outcome, lossless = finding(tmp_path / "lossless", None)
    assert (outcome, lossless.outcome) == ("undecided", "undecided")
    assert lossless.estimate is not None and lossless.estimate.n > 1500
    assert "weak evidence" in lossless.says and "word for word" in lossless.says
