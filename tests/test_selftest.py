"""The selftest's own parts: its population, its faults, its tables, and that it finds what it should."""

import json
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from gates import alternatives, eprocess, pit
from gates.residuals import Cells
from gates.selftest import bounds, faults, population, rates, streams, tables
from gates.selftest.population import Model
from gates.selftest.world import World
from loadgen import cli
from loadgen.cli import planted, selftest
from servers.sim import faults as servers_faults


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
    p = population.laws(400, rng)
    q = faults.LAWS[name](Model(p, population.disturbed(p, 1.0, rng), population.ends(p, 0.01, rng)), rng)
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
    assert faults.hurried(p, np.array([2]), 2)[0] == pytest.approx(
        [0.5 * 0.7 / 0.85, 0.3 * 0.7 / 0.85, 0.3, 0.05 * 0.7 / 0.85]
    )
    assert faults.typical(p, draft)[0] == pytest.approx(np.array([0.2, 0.6, 0.1, 0]) + 0.1 * p[0])


def test_tables_say_what_the_checks_say() -> None:
    """For tokens drawn over a pool: the tables' figures are those of the production functions on the same tokens."""
    rng = np.random.default_rng(2)
    p = population.laws(300, rng)
    ends = population.ends(p, 0.02, rng)
    pool = tables.pool(p, ends=ends)
    flat = tables.drawing(tables.cell_masses(p, p), rng)(500)
    context, cell = np.divmod(flat, tables.K + 1)
    listed = p[context, : tables.K]
    columns = np.tile(np.arange(tables.K, dtype=np.int32), (500, 1))
    ids = np.where(columns == ends[context][:, None], tables.EOS, columns)
    block = Cells(np.log(listed), listed, np.maximum(1 - listed.sum(axis=1), 0), cell, ids)
    for name, statistic in tables.STATISTICS.items():
        d, v = statistic(block)
        assert pool.d[name][flat] == pytest.approx(d) and pool.v[name][flat] == pytest.approx(v)
    assert pool.log_ratios[flat] == pytest.approx(alternatives.log_ratios(block), abs=1e-4)
    assert pool.d["likelihood"].reshape(300, -1)[3] @ tables.cell_masses(p, p)[3] == pytest.approx(0, abs=1e-9)
    edges = [pit.transformed(block, _Always(chance)) for chance in (0.0, 1.0)]
    found = flat[pool.open[context]]
    assert pool.below[found] == pytest.approx(edges[0])
    assert pool.below[found] + pool.mass[found] == pytest.approx(edges[1])


class _Always(np.random.Generator):
    def __init__(self, chance: float) -> None:
        super().__init__(np.random.PCG64())
        self._chance = chance

    def random(self, size: Any) -> Any:  # type: ignore[override]
        return np.full(size, self._chance)


def test_replies_end_as_often_as_asked() -> None:
    """Once in 300 tokens, at places that leave a choice."""
    p = population.laws(20_000, np.random.default_rng(1))
    ends = population.ends(p, 1 / 300, np.random.default_rng(2))
    rows = np.flatnonzero(ends >= 0)
    assert p[rows, ends[rows]].sum() / len(p) == pytest.approx(1 / 300, rel=0.01)
    assert p[rows, 0].max() < 0.7


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


def test_e_is_looked_at_after_every_token() -> None:
    """sup and crossing of five streams: those of the production e-process, fed with one token at a time."""
    world = World.made(1)
    q = world.faulty("top-p-0.95")
    cells = np.stack([world.draw(q)(2000) for _ in range(5)])

    def replay(n: int) -> Any:
        start = replay.at  # type: ignore[attr-defined]
        replay.at += n // 5  # type: ignore[attr-defined]
        return cells[:, start : start + n // 5].ravel()

    replay.at = 0  # type: ignore[attr-defined]
    course = streams.courses(world.pool, replay, 5, 2000, np.log(100))
    for number in range(5):
        process, crossed = eprocess.EProcess.empty(), -1
        for seen, ratios in enumerate(world.pool.log_ratios[cells[number]].astype(np.float64), 1):
            process.feed(ratios[None, :])
            crossed = seen if crossed < 0 and process.rejects(0.01) else crossed
        assert course.sup[number] == pytest.approx(process.log_sup, abs=1e-6)
        assert course.crossed[number] == crossed


def test_a_stratum_is_summed_by_place_and_look() -> None:
    """Against adding up one token after the other."""
    world = World.made(1)
    outcomes = world.draw(world.model.p)(2 * streams.EVERY + 7)
    index = np.random.default_rng(1).integers(3, size=len(outcomes))
    sums = np.zeros((3, 3, len(alternatives.ALTERNATIVES)))
    for place, (outcome, chunk_index) in enumerate(zip(outcomes, index, strict=True)):
        sums[place // streams.EVERY, chunk_index] += world.pool.log_ratios[outcome]
    assert streams._by_look(world.pool, outcomes, index, 3) == pytest.approx(sums)


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
    """Lossless: never different, equivalent by 65,000 tokens nearly always; others: different within 60,000."""
    found = rates.lossless(65_000, False, 0, 20)
    assert found.different == 0
    assert (found.equivalent > 0).sum() >= 17
    assert found.reached(0.5) is not None
    for fault in ("top-p-0.98", "late", "under-load"):
        lossy = rates.by_verdict(fault, 60_000, 0, 5)
        assert (lossy.caught, lossy.diagnosed) == (1.0, 1.0)


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


def test_faults_that_no_token_shows_are_null() -> None:
    """Every fault of the embedded engine is in the JSON: measured, or null."""
    assert set(faults.NAMES) == set(servers_faults.NAMES)
    absent = selftest._absent()
    assert absent == {"dropped": None, "usage": None, "bundled": None}
    assert set(selftest._of_streams(None)) | set(absent) == set(servers_faults.NAMES)


def test_a_broken_bound_is_said_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """top_k 20 held to a median of one and a half tokens; to its own figure it holds."""
    asked = ["selftest", "--fault", "top-k-20", "--streams", "20"]
    assert cli._run(asked) == 0
    assert "all 1 bounds hold" in capsys.readouterr().out
    monkeypatch.setitem(bounds.BY_E_ALONE, "top-k-20", 1)
    assert cli._run(asked) == 1
    said = capsys.readouterr().out
    assert "BROKEN" in said and "1 of 1 bounds are broken" in said


def test_a_fault_without_a_stream_is_refused_with_the_way_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the engine's option is named."""
    assert cli._run(["selftest", "--fault", "dropped"]) == 2
    assert "selftest --engine --fault dropped" in capsys.readouterr().err
    assert cli._run(["selftest", "--engine", "--fault", "dropper"]) == 2
    assert "Did you mean dropped?" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["greedy-0.20", "usage"])
def test_a_planted_fault_is_seen_end_to_end(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a check, or, where no token shows it, by a warning; the lossless engine beside it is not called different."""
    monkeypatch.setattr(planted, "TOKENS", 8000)
    assert cli._run(["selftest", "--engine", "--fault", fault, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["engine"]
    assert {name: one["as_wanted"] for name, one in said.items()} == {"none": True, fault: True}
    assert (said[fault]["outcome"] == "different") == (fault != "usage")


def ended(seed: int, count: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return seed + count


def test_a_process_that_is_ended_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As the system does where memory runs out: one sentence, and exit 4."""
    with pytest.raises(BrokenProcessPool, match="ended from outside"):
        list(rates.spread(ended, 4, 1, 2))

    def broken(*given: Any) -> None:
        list(rates.spread(ended, 4, 1, 2))

    monkeypatch.setattr(cli.group, "main", lambda **given: broken())
    assert cli._run(["selftest"]) == 4
    assert capsys.readouterr().err.startswith("loadgate: A process that did part of the work was ended from outside")
