"""An oracle's law over the reference's cells, its alternatives and its residuals, against enumeration and by hand."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import binom

from factories import drawn, scored
from gates import eprocess, oracles, residuals
from gates.residuals import Cells
from gates.scored import Rows, Scored
from gates.selftest.population import disturbed, laws
from loadgen.record import SCORE_DTYPE
from oracled import told

LAW = np.array([0.55, 0.25, 0.13, 0.07])  # of four tokens; the reference lists the first three
WRONG = np.array([0.2, 0.3, 0.1, 0.4])


def block(p: np.ndarray, k: int = 3) -> Cells:
    """The same law at every position, one position for each cell."""
    n = k + 1
    listed = np.tile(p[:k], (n, 1))
    ids = np.tile(np.arange(k, dtype=np.int32), (n, 1))
    return Cells(np.log(listed), listed, 1 - listed.sum(axis=1), np.arange(n), ids)


def listing(q: np.ndarray, ids: list[int], n: int = 4) -> oracles.Told:
    """An oracle that lists these tokens at every position."""
    rows = np.zeros(n, SCORE_DTYPE)
    rows["ids"], rows["logprobs"] = -1, -np.inf
    rows["ids"][:, : len(ids)], rows["logprobs"][:, : len(ids)] = ids, np.log(q[ids])
    return oracles.Told(rows, np.arange(n))


def lists() -> Iterator[list[int]]:
    """What an oracle of four tokens may list: its likeliest one, two, three or four."""
    order = np.argsort(-WRONG, kind="stable").tolist()
    yield from (order[:count] for count in range(1, 5))


def test_a_law_over_the_cells_by_hand() -> None:
    """Token 3 is not the reference's and goes to `other`. Token 2 is not the oracle's: half of the .1 that its list
    leaves is less than e⁻¹ of its least listed chance, .2."""
    full = oracles.odds(block(LAW), listing(WRONG, [3, 1, 0, 2]), 0)
    assert full.q[0] == pytest.approx([0.2, 0.3, 0.1, 0.4])
    short = oracles.odds(block(LAW), listing(WRONG, [3, 1, 0]), 0)
    assert short.q[0] == pytest.approx([0.2, 0.3, 0.05, 0.45])
    assert short.ratio[0] == pytest.approx([0.2 / 0.55, 0.3 / 0.25, 0.05 / 0.13, 0.45 / 0.07])
    shortest = oracles.odds(block(LAW), listing(np.array([0.97, 0.01, 0.01, 0.01]), [0, 3]), 0)
    assert shortest.q[0] == pytest.approx([0.97, 0.01 / math.e, 0.01 / math.e, 0.03 - 0.02 / math.e])


@pytest.mark.parametrize("ids", list(lists()), ids=lambda ids: f"{len(ids)} listed")
def test_every_share_is_a_law(ids: list[int]) -> None:
    """Σ_c p·r/p = 1 for each share, by enumeration of the cells, however little the oracle lists."""
    seen = oracles.odds(block(LAW), listing(WRONG, ids), 0)
    assert seen.q.sum(axis=1) == pytest.approx(np.ones(4))
    assert LAW @ np.exp(oracles.log_ratios(seen)) == pytest.approx(np.ones(len(oracles.SHARES)))


def test_ratios_are_those_of_the_mixtures() -> None:
    """.99 of (1 − e)p + e·q and .01 of p, written out."""
    found = np.exp(oracles.log_ratios(oracles.odds(block(LAW), listing(WRONG, [3, 1, 0, 2]), 0)))
    for column, share in enumerate((0.03, 0.1, 0.3, 1.0)):
        mixture = 0.99 * ((1 - share) * LAW + share * WRONG) + 0.01 * LAW
        assert found[:, column] == pytest.approx(mixture / LAW)


@pytest.mark.parametrize("ids", list(lists()), ids=lambda ids: f"{len(ids)} listed")
def test_products_are_supermartingales(ids: list[int]) -> None:
    """Over every sequence of four tokens of a four-token vocabulary the mean of each product is one at most: exactly
    one, and less where `other` has a smaller chance than the least that is reckoned with."""
    for claimed in (LAW, np.array([0.55, 0.25, 0.2, 0.0])):
        ratios = oracles.log_ratios(oracles.odds(block(claimed), listing(WRONG, ids), 0))
        mean = np.zeros(len(oracles.SHARES))
        for cells in itertools.product(range(4), repeat=4):
            mean += np.prod(claimed[list(cells)]) * np.exp(ratios[list(cells)].sum(axis=0))
        assert (mean <= 1 + 1e-9).all()
        exact = claimed is LAW
        assert (mean == pytest.approx(np.ones(4), abs=1e-6)) is exact


def test_scores_that_are_no_law_stay_supermartingales() -> None:
    """Listed chances of more than one in all, one id twice, numbers that are none: Σ_c p·r/p is at most 1."""
    rows = listing(WRONG, [3, 1, 0, 2]).rows
    rows["logprobs"][0, :4] = 0.0
    rows["ids"][1, :4] = 1
    rows["logprobs"][2, :4] = np.nan
    rows["logprobs"][3, :4] = np.inf
    for row in range(4):
        same = oracles.Told(np.repeat(rows[row : row + 1], 4), np.arange(4))
        total = LAW @ np.exp(oracles.log_ratios(oracles.odds(block(LAW), same, 0)))
        assert np.isfinite(total).all() and (total <= 1 + 1e-9).all()


def test_without_a_score_it_says_nothing() -> None:
    """Ratio 1, residual 0, of no variance: where it has no row, and where it has none of the whole pass."""
    half = oracles.Told(listing(WRONG, [0, 1]).rows, np.array([0, -1, 2, -1]))
    for seen, silent in (
        (oracles.odds(block(LAW), half, 0), [1, 3]),
        (oracles.odds(block(LAW), None, 0), [0, 1, 2, 3]),
    ):
        assert oracles.log_ratios(seen)[silent] == pytest.approx(np.zeros((len(silent), 4)))
        for part in oracles.residual(seen):
            assert part[silent] == pytest.approx(np.zeros(len(silent)), abs=1e-12)


def test_residuals_have_mean_zero_and_gain_what_they_say() -> None:
    """Σ p d = 0, Σ p d² = v; drawn from (1 − e)p + e·q the mean of d is e·gain, for every e."""
    d, v, gain = oracles.residual(oracles.odds(block(LAW), listing(WRONG, [3, 1, 0, 2]), 0))
    assert float(LAW @ d) == pytest.approx(0, abs=1e-12)
    assert float(LAW @ d**2) == pytest.approx(v[0])
    for share in (0.03, 0.5, 1.0):
        assert float(((1 - share) * LAW + share * WRONG) @ d) == pytest.approx(share * gain[0])


def rows_at(places: list[tuple[int, int]]) -> Scored:
    rows = np.zeros(len(places), SCORE_DTYPE)
    rows["position"] = [position for _, position in places]
    return Scored(rows, np.array([reply for reply, _ in places], np.int64), {})


def test_rows_are_matched_by_reply_and_position() -> None:
    """What the oracle left out has −1, what it alone has is not looked at."""
    reference = rows_at([(0, 0), (0, 1), (1, 0), (1, 2), (3, 0)])
    oracle = rows_at([(0, 1), (1, 0), (1, 1), (2, 0), (3, 0)])
    assert oracles.aligned(reference, oracle).at.tolist() == [-1, 0, 1, -1, 4]
    assert oracles.aligned(reference, rows_at([])).at.tolist() == [-1] * 5


# Error rate and power, over a population of contexts.

RNG = np.random.default_rng(3)
P = laws(1500, RNG)
DRAFT = disturbed(P, 1.2, RNG, flatten=0.1)


def stream(law: np.ndarray, tokens: int, rng: np.random.Generator) -> tuple[Rows, oracles.Told]:
    contexts, ids = drawn(law, tokens, rng)
    return scored(0, np.log(P)[contexts], ids), oracles.Told(told(DRAFT[contexts], ids), np.arange(tokens))


def log_e(law: np.ndarray, tokens: int, rng: np.random.Generator) -> np.ndarray:
    """(tokens,) log of the mean over one oracle's shares, behind each token."""
    rows, seen = stream(law, tokens, rng)
    ratios = [oracles.log_ratios(oracles.odds(part, seen, start)) for start, part in residuals.blocks(rows)]
    return eprocess.log_mean_exp(np.cumsum(np.concatenate(ratios), axis=0))


def test_a_lossless_stream_passes_20_in_no_more_than_one_of_20() -> None:
    """Of 200 streams of 1,500 tokens, at whatever token one looks; binomial (.999)."""
    rng = np.random.default_rng(5)
    passed = sum(log_e(P, 1500, rng).max() >= math.log(20) for _ in range(200))
    assert passed <= binom.ppf(0.999, 200, 1 / 20)


def test_unverified_drafts_are_found_by_the_mixture_alone() -> None:
    """A tenth of the tokens the draft's: E ≥ 1000 within 8,000 tokens in most of 12 streams, and E of a lossless stream
    has fallen by then."""
    rng = np.random.default_rng(6)
    found = sum(log_e(0.9 * P + 0.1 * DRAFT, 8000, rng).max() >= math.log(1000) for _ in range(12))
    assert found >= 7
    assert log_e(P, 8000, rng)[-1] < 0
