"""The selftest's own parts: its population, its faults, its tables, and that it finds what it should."""

import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from gates import alternatives, residuals
from gates.residuals import Cells
from gates.selftest import faults, population, rates, streams, tables
from loadgen import cli


def test_the_population_has_the_published_figures() -> None:
    """Entropy about .66 nat, variance of log p about 1.06, likeliest token about .85, half of the positions sure."""
    p = population.laws(20_000, np.random.default_rng(1))
    logp = np.log(np.maximum(p, 1e-300))
    entropy = -(p * logp).sum(axis=1)
    assert p.sum(axis=1) == pytest.approx(np.ones(len(p)))
    assert entropy.mean() == pytest.approx(0.66, abs=0.04)
    assert ((p * logp**2).sum(axis=1) - entropy**2).mean() == pytest.approx(1.06, abs=0.08)
    assert p[:, 0].mean() == pytest.approx(0.85, abs=0.01)
    assert (entropy < 0.01).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", sorted(faults.LAWS))
def test_every_fault_makes_laws(name: str) -> None:
    """Rows sum to one, nothing is negative, and something is changed."""
    rng = np.random.default_rng(1)
    p = population.laws(200, rng)
    q = faults.LAWS[name](p, population.disturbed(p, 1.0, rng), rng)
    assert q.sum(axis=1) == pytest.approx(np.ones(len(p)))
    assert (q >= 0).all() and np.abs(q - p).sum() > 0


def test_faults_against_laws_written_out() -> None:
    """Of one law of four tokens."""
    p, draft = np.array([[0.5, 0.3, 0.15, 0.05]]), np.array([[0.2, 0.6, 0.1, 0.1]])
    assert faults.nucleus(p, 0.75)[0] == pytest.approx([0.625, 0.375, 0, 0])
    assert faults.likeliest(p, 3)[0] == pytest.approx(np.array([0.5, 0.3, 0.15, 0]) / 0.95)
    assert faults.at_least(p, 0.4)[0] == pytest.approx([0.625, 0.375, 0, 0])
    assert faults.partly_greedy(p, 0.2)[0] == pytest.approx([0.6, 0.24, 0.12, 0.04])
    assert faults.threshold(p, draft, 0.3)[0].tolist() == [0, 1, 0, 0]
    assert faults.threshold(p, draft, 0.4)[0] == pytest.approx(p[0])
    assert faults.typical(p, draft)[0] == pytest.approx(np.array([0.2, 0.6, 0.1, 0]) + 0.1 * p[0])


def test_tables_say_what_the_checks_say() -> None:
    """For tokens drawn over a pool: the tables' figures are those of the production functions on the same tokens."""
    rng = np.random.default_rng(2)
    p = population.laws(300, rng)
    pool = tables.pool(p)
    flat = tables.drawing(tables.cell_masses(p, p), rng)(500)
    context, cell = np.divmod(flat, tables.K + 1)
    listed = p[context, : tables.K]
    ids = np.tile(np.arange(tables.K, dtype=np.int32), (500, 1))
    block = Cells(np.log(listed), listed, np.maximum(1 - listed.sum(axis=1), 0), cell, ids)
    for name, statistic in tables.STATISTICS.items():
        d, v = statistic(block)
        assert pool.d[name][flat] == pytest.approx(d) and pool.v[name][flat] == pytest.approx(v)
    assert pool.log_ratios[flat] == pytest.approx(alternatives.log_ratios(block), abs=1e-4)
    assert pool.d["likelihood"].reshape(300, -1)[3] @ tables.cell_masses(p, p)[3] == pytest.approx(0, abs=1e-9)
    assert residuals.likelihood(block)[0].shape == (500,)


def test_the_alias_method_draws_from_the_masses() -> None:
    """χ² of 200,000 draws over five cells."""
    masses = np.array([[0.5, 0.1, 0.4], [0.05, 0.95, 0.0]])
    counts = np.bincount(tables.drawing(masses, np.random.default_rng(3))(200_000), minlength=6)
    assert counts[5] == 0
    assert chisquare(counts[:5], 200_000 * masses.ravel()[:5] / 2).pvalue > 1e-3


def test_a_chunk_ends_with_a_rejected_draft_or_behind_all_accepted_ones() -> None:
    """Two drafts a step: indices 0, 1, 2 where all pass; back to 0 behind a rejection; carried on between batches."""
    accepted = np.array([True, True, True, True, False, True])
    index, since = streams._chunk_index(accepted, 2, 0)
    assert (index.tolist(), since) == ([0, 1, 2, 0, 1, 0], 1)
    assert streams._chunk_index(accepted[:2], 2, since)[0].tolist() == [1, 2]


def test_lossless_streams_rarely_pass_a_bound() -> None:
    """Of 400 streams of 20,000 tokens, plain and scored with noise: E ≥ 20 in no more than one of twenty."""
    for noise in (0.0, 0.03):
        sups = rates.plain_sups(20_000, noise, 0, 400)
        assert (sups >= np.log(20)).sum() <= binom.ppf(0.999, 400, 0.05)


def test_lossless_speculators_pass_neither_by_the_place_in_a_chunk() -> None:
    """Of either kind of draft, over the stratum of chunk indices."""
    for sampled in (True, False):
        sups = rates.chunked_sups(25_000, sampled, 0, 100)
        assert (sups >= np.log(20)).sum() <= binom.ppf(0.999, 100, 0.05)


def test_comparisons_end_as_they_should() -> None:
    """Lossless: never different, equivalent by 65,000 tokens nearly always; top_p .98: different within 60,000."""
    found = rates.lossless(65_000, False, 0, 20)
    assert found.different == 0
    assert (found.equivalent > 0).sum() >= 17
    truncated = rates.by_verdict("top-p-0.98", 60_000, 0, 5)
    assert (truncated.caught, truncated.diagnosed) == (1.0, 1.0)


def test_the_residual_is_five_times_as_sharp() -> None:
    """As two unpaired sets of replies of the same kind, at the least."""
    residual, unpaired = rates.standard_errors(300, 1)
    assert unpaired > 5 * residual


def test_the_command_says_it_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One fault: found in every stream, named rightly."""
    assert cli._run(["selftest", "--fault", "top-k-20", "--streams", "40", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    (found,) = said["faults"].values()
    assert (found["caught"], found["diagnosed"]) == (1.0, 1.0)
    assert found["tokens_to_different"] < 20_000
    assert cli._run(["selftest", "--fault", "top-k"]) == 2
