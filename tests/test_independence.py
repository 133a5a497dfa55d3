"""independence: requests that run at one moment draw by themselves; one seed for all shows in how their tokens fall."""

import dataclasses
import itertools

import numpy as np
import pytest
from probing import OFTEN, TERMS, arm, evidence, one_pass
from scipy import integrate
from scipy.special import ndtri
from scipy.stats import binom

from arms import P
from gates.checks import independence
from gates.checks.independence import Settings, expected_normal
from gates.evidence import Arm, Evidence, Role
from gates.finding import Finding
from gates.scored import Scored

OPEN = P[P[:, 0] < 0.6]
TOKENS = 12


def test_the_mean_of_the_normal_score_of_a_cell_is_the_integral() -> None:
    """(φ(a) − φ(b))/(Φ(b) − Φ(a)) against quadrature of Φ⁻¹(u) over each cell's part of (0, 1)."""
    law = np.array([0.5, 0.3, 0.15, 0.05])
    edges = np.concatenate([[0.0], np.cumsum(law)])
    expected = [integrate.quad(ndtri, low, high)[0] / (high - low) for low, high in itertools.pairwise(edges)]

    assert expected_normal(np.tile(law, (4, 1)), np.arange(4)) == pytest.approx(np.array(expected), abs=1e-6)


def test_its_mean_over_a_law_is_zero() -> None:
    """Σ p E[Φ⁻¹(u) | cell] = 0: so products of independent ones have the mean 0, whatever the two laws are."""
    for law in OPEN[:20]:
        p = np.tile(law / law.sum(), (len(law), 1))

        assert law @ expected_normal(p, np.arange(len(law))) == pytest.approx(0, abs=1e-9)


def drawing(role: Role, rng: np.random.Generator, shared: bool = False, pairs: int = 40, gap_ns: int = 10) -> Arm:
    """Replies in pairs, the second sent gap_ns after the first; where shared, with one u a position, by falling
    chance."""
    replies, tokens, laws = [], [], []
    for pair in range(pairs):
        u = rng.random((2, TOKENS))
        for i in (0, 1):
            path = OPEN[rng.integers(len(OPEN), size=TOKENS)]
            below = np.cumsum(path, axis=1) < u[0 if shared else i][:, None]
            tokens.append(np.minimum(below.sum(axis=1), path.shape[1] - 1))
            laws.append(np.log(path))
            replies.append((pair * 1000 + i * gap_ns, pair * 1000 + i * gap_ns + 100))
    return arm(role, passes=[one_pass(replies, tokens, laws)])


def finding(found: Evidence) -> Finding:
    (only,) = independence.check(found, Settings(), TERMS).findings
    return only


def test_one_seed_for_all_is_found() -> None:
    """480 pairs of tokens by one u: correlated near 1, and called different."""
    rng = np.random.default_rng(1)
    found = finding(evidence(drawing("stock", rng), drawing("candidate", rng, shared=True)))

    assert found.outcome == "different"
    assert found.estimate is not None and found.estimate.value > 0.8
    assert "one seed" in found.says


def test_pairs_of_tokens_are_of_one_position_where_a_part_is_scored() -> None:
    """A random quarter of each reply's positions: of the two, one in sixteen is scored in both, and paired."""
    rng = np.random.default_rng(6)
    whole = drawing("candidate", rng, shared=True, pairs=400)
    (one,) = whole.passes
    kept = rng.random(len(one.scored.rows)) < 0.25
    part = dataclasses.replace(one, scored=Scored(one.scored.rows[kept], one.scored.reply[kept], {}))
    found = independence.correlation(dataclasses.replace(whole, passes=[part]))

    assert found.n == kept.reshape(400, 2, TOKENS).all(axis=1).sum() > 200
    assert found.value > 0.8


def test_what_stock_does_too_is_no_difference() -> None:
    """Where stock's requests share their randomness, a candidate whose do as well passes."""
    rng = np.random.default_rng(2)

    assert finding(evidence(drawing("stock", rng, True), drawing("candidate", rng, True))).outcome == "passed"


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_lossless_requests_are_called_different_no_more_often_than_the_level_says(level: float) -> None:
    """Of 500 servers, 120 pairs of tokens each, by the p-value of the two orders together."""
    rng = np.random.default_rng(3)
    chances = [independence.correlation(drawing("candidate", rng, pairs=10)).p_value for _ in range(500)]

    assert sum(p <= level for p in chances) <= binom.ppf(0.999, 500, level)


def test_equal_servers_pass() -> None:
    """Of 60 comparisons at .05 at most eight (99.9 % binomial) say different."""
    rng = np.random.default_rng(4)
    found = [
        independence.check(evidence(drawing("stock", rng), drawing("candidate", rng)), Settings(), OFTEN).findings[0]
        for _ in range(60)
    ]

    assert sum(one.outcome == "different" for one in found) <= binom.ppf(0.999, 60, 0.05)


def test_only_requests_that_overlap_are_pairs() -> None:
    """A reply that starts after the other's end shares no moment with it, and a reply is of one pair at most."""
    replies = one_pass(
        [(0, 10), (5, 15), (8, 20), (30, 40), (40, 50)], [np.array([0])] * 5, [np.log(P[:1])] * 5
    ).replies

    assert independence.concurrent(replies) == [(0, 1)]
    assert independence.concurrent(replies[1:]) == [(0, 1)]
    assert independence.concurrent([dataclasses.replace(replies[0], end_ns=None), replies[1]]) == []


def test_requests_one_after_the_other_leave_it_undecided() -> None:
    """A lone lane has nothing to share."""
    rng = np.random.default_rng(5)
    found = finding(evidence(drawing("stock", rng, gap_ns=500), drawing("candidate", rng, gap_ns=500)))

    assert found.outcome == "undecided"
    assert found.missing == "hardly any two requests ran at one moment and were scored"
