"""Residuals against sums over a small vocabulary, written out."""

import itertools
from typing import Any

import numpy as np
import pytest

from factories import drawn, population, scored
from gates import residuals
from gates.residuals import Residuals, cells, first_choice, first_choice_weighted, likelihood
from gates.scored import Scored
from loadgen.record import SCORE_DTYPE

P = np.array([0.5, 0.25, 0.15, 0.1])


def rows(p: np.ndarray[Any, Any], listed: list[int], tokens: list[int]) -> np.ndarray[Any, Any]:
    """One position a token, at which the reference lists the ids in that order."""
    out = np.empty(len(tokens), SCORE_DTYPE)
    out["ids"], out["logprobs"] = -1, -np.inf
    out["request"], out["position"], out["token_id"] = 7, np.arange(len(tokens)), tokens
    out["logprob"] = np.log(p[tokens])
    out["ids"][:, : len(listed)] = listed
    out["logprobs"][:, : len(listed)] = np.log(p[listed])
    return out


def by_hand(g: dict[int, float], p: np.ndarray[Any, Any], token: int) -> tuple[float, float]:
    mean = sum(p[i] * g[i] for i in g)
    return g[token] - mean, sum(p[i] * g[i] ** 2 for i in g) - mean**2


@pytest.mark.parametrize(
    "listed", [[0, 1, 2, 3], [0, 1, 2], [0, 1]], ids=["whole vocabulary", "one hidden", "two hidden"]
)
def test_likelihood_is_the_score_by_hand(listed: list[int]) -> None:
    """g is log p of a listed token and that of the last listed for any other; D and v are its centred moments."""
    g = {i: float(np.log(P[i] if i in listed else P[listed[-1]])) for i in range(4)}
    d, v = likelihood(cells(rows(P, listed, [0, 1, 2, 3])))
    for token in range(4):
        assert (d[token], v[token]) == pytest.approx(by_hand(g, P, token), abs=1e-7)


@pytest.mark.parametrize("statistic", [likelihood, first_choice, first_choice_weighted])
def test_a_residual_has_mean_zero_and_its_stated_variance(statistic: residuals.Statistic) -> None:
    """Summed over what the reference may draw: Σ p D = 0 and Σ p D² = v."""
    d, v = statistic(cells(rows(P, [0, 1, 2], [0, 1, 2, 3])))
    assert (P * d).sum() == pytest.approx(0, abs=1e-7)
    assert (P * d**2).sum() == pytest.approx(v[0], abs=1e-7)


def test_first_choice_takes_a_tied_top_as_one_set() -> None:
    """Both of two tied tokens are first choices, and their common mass is taken off."""
    p = np.array([0.4, 0.4, 0.15, 0.05])
    d, v = first_choice(cells(rows(p, [0, 1, 2], [0, 1, 2, 3])))
    assert d == pytest.approx([0.2, 0.2, -0.8, -0.8], abs=1e-6)
    assert v == pytest.approx([0.16] * 4, abs=1e-6)


def test_weighted_first_choice_is_divided_by_the_mass() -> None:
    """D/m, and variance (1 − m)/m: the derivative of the log-likelihood by a share of greedy decoding."""
    d, v = first_choice_weighted(cells(rows(P, [0, 1], [0, 3])))
    assert d == pytest.approx([1.0, -1.0], abs=1e-6)
    assert v == pytest.approx([1.0, 1.0], abs=1e-6)


def test_the_order_of_the_answer_does_not_matter() -> None:
    """A server lists the actual token first; the cells are ordered by probability, then id, whatever it lists first."""
    p = np.array([0.3, 0.3, 0.25, 0.15])
    expected = cells(rows(p, [0, 1, 2], [1]))
    for listed in itertools.permutations([0, 1, 2]):
        found = cells(rows(p, list(listed), [1]))
        assert found.cell.tolist() == expected.cell.tolist() == [1]
        assert found.p.tolist() == expected.p.tolist()


def test_a_token_is_other_exactly_when_its_id_is_not_listed() -> None:
    """Also where fewer than k alternatives came, and never by the token's own log-probability."""
    found = cells(rows(P, [0, 1], [0, 1, 2, 3]))
    assert found.cell.tolist() == [0, 1, 20, 20]
    assert found.other == pytest.approx([0.25] * 4, abs=1e-6)


def test_an_alternative_of_no_probability_stays_finite() -> None:
    """A server may list −inf: the score there is that of the last cell that has any mass."""
    listed = rows(np.array([0.7, 0.3]), [0, 1], [1])
    listed["ids"][0, 2], listed["token_id"] = 2, 2
    d, v = likelihood(cells(listed))
    assert np.isfinite(d).all() and np.isfinite(v).all()


def test_masses_that_sum_to_more_than_one_leave_no_negative_rest() -> None:
    """float32 log-probabilities of a nearly certain token sum to 1 + 1e-7: other is 0, v is not negative."""
    sure = rows(np.array([1 - 1e-9, 1e-9]), [0, 1], [0])
    sure["logprobs"][:, 0] = 1e-7
    found = cells(sure)
    assert found.other.tolist() == [0.0]
    assert all((statistic(found)[1] >= 0).all() for statistic in (likelihood, first_choice, first_choice_weighted))


def test_blocks_give_what_one_piece_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million tokens are worked on in blocks; their size changes nothing."""
    rng = np.random.default_rng(3)
    p = population(rng, 200)
    context, tokens = drawn(p, 1000, rng)
    one = Scored(scored(7, np.log(p[context]), tokens), np.zeros(1000, np.int64), {})
    whole = residuals.residuals(one, [likelihood])[0]
    monkeypatch.setattr(residuals, "BLOCK", 137)
    in_blocks = residuals.residuals(one, [likelihood])[0]
    assert in_blocks.d.tolist() == whole.d.tolist()


def test_mean_and_variance_hold_over_a_population() -> None:
    """Over 200,000 tokens a lossless total is within four of its own standard errors, and spread as stated."""
    rng = np.random.default_rng(4)
    p = population(rng, 2000)
    context, tokens = drawn(p, 200_000, rng)
    one = Scored(scored(7, np.log(p)[context], tokens), np.zeros(200_000, np.int64), {})
    for of_one in residuals.residuals(one, [likelihood, first_choice, first_choice_weighted]):
        assert abs(of_one.d.sum()) < 4 * np.sqrt(of_one.v.sum())
        assert (of_one.d**2).sum() == pytest.approx(of_one.v.sum(), rel=0.1)


def part(values: list[float], reply: list[int]) -> Residuals:
    return Residuals(np.array(values), np.ones(len(values)), np.array(reply))


def test_pooling_keeps_replies_of_different_profiles_apart() -> None:
    """Reply 0 of one profile is not reply 0 of another."""
    both = residuals.pooled([part([1, 2], [0, 1]), part([3], [0])])
    assert both.d.tolist() == [1, 2, 3]
    assert both.reply.tolist() == [0, 1, 2]


def test_matched_takes_equal_numbers_of_each_profile() -> None:
    """The arm with more tokens gives its first ones; a profile of one arm alone is left out."""
    one = {"solo": part([1, 2, 3], [0, 0, 1]), "team": part([4], [0])}
    other = {"solo": part([5, 6], [0, 1]), "team": part([7, 8], [0, 0]), "busy": part([9], [0])}
    both = residuals.matched(one, other)
    assert both is not None
    assert (both[0].d.tolist(), both[1].d.tolist()) == ([1, 2, 4], [5, 6, 7])
    assert residuals.matched({"solo": part([1], [0])}, {"team": part([1], [0])}) is None
