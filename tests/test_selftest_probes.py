"""The selftest's probes: drawn as they say, judged by the production checks, and held to their bounds."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from gates import plan, probes, repeats
from gates.checks import Terms, agreement, honesty, repeat_prefix
from gates.repeats import Pair
from gates.selftest import bounds, faults, population, prefixes, rates, replies, tables
from gates.selftest.comparison import Rules
from gates.selftest.prefixes import Probe, Site
from gates.selftest.replies import Model
from loadgen.cli import streams_page
from loadgen.cli.progress import Progress
from loadgen.cli.streams import Streams, choose
from loadgen.probes.prefixes import weights

PROBE = Probe(choose, 40, 64)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer tokens to choose from."""
    monkeypatch.setattr(prefixes, "SCORED", 1500)


def terms() -> Terms:
    return Rules(plan.load("strict")).terms(3)


def test_prefixes_are_chosen_as_the_probe_does(few: None) -> None:
    """The largest λ of the probe's own formula among what was scored, the largest first."""
    rng = np.random.default_rng([7, 3])
    p = population.laws(prefixes.SCORED, rng)
    of_all = weights(prefixes._rows(p))
    site = Site.made(PROBE, 0.0, 3)
    assert weights(prefixes._rows(site.p)) == pytest.approx(np.sort(of_all)[::-1][:40], rel=1e-6)


def test_rows_hold_the_scorers_order() -> None:
    """Its likeliest tokens, falling, whatever the order of the law that is sampled."""
    law = np.array([np.r_[0.1, 0.5, 0.3, np.full(21, 0.1 / 21)]])
    rows = prefixes._rows(law)
    assert rows["ids"][0][:3].tolist() == [1, 2, 0]
    assert np.exp(rows["logprobs"][0][:3]) == pytest.approx([0.5, 0.3, 0.1])


def test_draws_are_of_the_law_that_is_asked_for(few: None) -> None:
    """χ² of 40 × 64 draws from another law than the reference's, over its cells."""
    site = Site.made(PROBE, 0.1, 1)
    law = population.disturbed(site.p, 0.5, site.rng)
    found = site.drawn(law)
    assert found.n.tolist() == [64] * 40
    expected = 64 * tables.cell_masses(law, site.scored).sum(axis=0)
    large = expected > 5
    counts, wanted = (
        np.r_[of[large], of[~large].sum()] for of in (found.counts.sum(axis=0).astype(np.float64), expected)
    )
    assert chisquare(counts, wanted).pvalue > 1e-3
    assert found.p[:, :-1].argmax(axis=1).tolist() == [0] * 40


def test_a_null_that_runs_share_is_that_of_each(few: None) -> None:
    """The reference's p of three runs: as the check simulates it for each alone, to the error of 2,000 draws."""
    site = Site.made(PROBE, 0.0, 5)
    for _ in range(3):
        found = site.drawn(site.p)
        alone = repeats.p_value(found, np.random.default_rng(1))
        assert site.by_reference(found) == pytest.approx(alone, abs=5 * np.sqrt(0.25 / 2000 * 2))
    assert list(site.nulls) == [40]


def test_the_verdict_needs_both_halves(few: None) -> None:
    """Its p is the larger of the two, as the check has it; one that was not asked for leaves the first."""
    found = prefixes.Chances(np.array([0.01, 0.2]), np.array([0.03, np.nan]))
    assert found.both.tolist() == [0.03, 0.2]
    site = Site.made(PROBE, 0.0, 6)
    pair = Pair(site.drawn(population.disturbed(site.p, 0.229, site.rng)), site.drawn(site.p))
    ours = max(site.by_reference(pair.candidate), pair.p_value(site.rng))
    theirs = repeat_prefix.measured(pair, repeat_prefix.Settings(), 0.95).p_value
    assert np.log10(ours) == pytest.approx(np.log10(theirs), abs=0.7)


def test_lossless_draws_are_rarely_unlikely(few: None) -> None:
    """Of 200 probes, p ≤ .05 in no more than one of twenty; of 100 scored with noise of .1, against stock's too."""
    small = Probe(choose, 12, 64)
    plain = prefixes.lossless(small, 0.0, 0.05, 0, 200)
    assert 0 < (plain.reference <= 0.05).sum() <= binom.ppf(0.999, 200, 0.05)
    assert (plain.both <= 0.05).sum() <= (plain.reference <= 0.05).sum()
    noisy = prefixes.lossless(small, 0.1, 1.0, 0, 100)
    assert (noisy.stock <= 0.05).sum() <= binom.ppf(0.999, 100, 0.05)


def test_frozen_noise_is_found(few: None) -> None:
    """KL .03 at 24 prefixes in nearly every run, at 4 in fewer; judged whole, it is different, and lossless is not."""
    found = prefixes.noisy(PROBE, 0.03, (4, 24), 0, 12).both <= 0.001
    assert found[:, 1].sum() >= 11
    assert found[:, 0].sum() <= found[:, 1].sum()
    whole = Probe(choose, 80, 64)
    assert prefixes.judged(whole, 0.03, 1e-5, 0, 3).tolist() == [[False, True]] * 3
    assert prefixes.judged(whole, 0.0, 1e-5, 0, 3).tolist() == [[True, False]] * 3


def test_draws_for_a_power() -> None:
    """The first size from which on it stays; none where the largest falls short."""
    assert prefixes.draws_for(np.array([0.91, 0.85, 0.92, 0.99]), (1, 2, 3, 4), 64, 0.9) == 192
    assert prefixes.draws_for(np.array([0.5, 0.89]), (1, 2), 64, 0.9) is None


def test_tokens_are_drawn_by_their_chances() -> None:
    """χ² of 20,000 tokens of one law of four."""
    law = np.array([[0.5, 0.3, 0.15, 0.05]])
    ids = replies.drawn(np.cumsum(law, axis=1), np.zeros(20_000, np.int64), np.random.default_rng(1))
    assert chisquare(np.bincount(ids, minlength=4), 20_000 * law[0]).pvalue > 1e-3


def test_pairs_agree_as_two_draws_do() -> None:
    """Σ p² of the places, to four standard errors; copies agree everywhere. Every token has its score."""
    model = Model.made(1)
    probed = replies.audited(model, "stock", False, 32).first(64)
    assert all(len(probed.rows(record)) == replies.LONGEST for record in probed.records)
    found = agreement.places(probed)
    error = np.sqrt((found.chance * (1 - found.chance)).sum()) / found.n
    assert found.agree.mean() == pytest.approx(found.chance.mean(), abs=4 * error)
    copied = agreement.places(replies.audited(model, "candidate", True, 4).first(8))
    assert (copied.n, copied.agree.mean()) == (4 * replies.LONGEST, 1.0)


def test_reports_are_of_the_model() -> None:
    """Beside tokens of another law: log p of each, and of the likeliest."""
    model = Model.made(2)
    kept = replies.told(model, "candidate", np.cumsum(faults.heated(model.p, faults.COLD), axis=1), 1)
    (record,) = kept.records
    own, rows = probes.own_logprobs(record), kept.first(1).rows(record)
    assert own == pytest.approx(rows["logprob"], abs=1e-4)
    assert len(rows) == replies.OF_TOLD
    reported = honesty.as_rows(record, len(rows))
    assert np.sort(reported["logprobs"], axis=1) == pytest.approx(np.sort(rows["logprobs"], axis=1), abs=1e-4)


def test_whole_replies_of_equal_servers_are_rarely_called_different() -> None:
    """Of 40 audits and 10 passes with log-probabilities, by the binomial."""
    for kind, count in (("repeat_audit", 40), ("logprobs", 10)):
        different = replies.lossless(kind, terms(), 0, count)  # type: ignore[arg-type]
        for level, found in zip(replies.LEVELS, different, strict=True):
            assert found <= binom.ppf(0.999, count, level)


def test_copies_and_dishonest_reports_are_found() -> None:
    """At the level of plan strict, the latter named rightly; equal replies never."""
    assert replies.copies(terms(), 0, 4).caught == 1.0
    found = replies.dishonest(terms(), 0, 2)
    assert (found.caught, found.diagnosed) == (1.0, 1.0)
    model = Model.made(3)
    arms = [replies.audited(model, label, False, 32) for label in ("candidate", "stock")]  # type: ignore[arg-type]
    assert replies.until_different(*arms, terms(), 16) == -1


def test_bounds_are_the_binomials() -> None:
    """At most what a true rate brings but once in a thousand; nothing reached holds no bound."""
    assert bounds.counted("", 21, 10_000, 0.001).holds
    assert not bounds.counted("", 22, 10_000, 0.001).holds
    assert rates.allowed(10_000, 0.001) == binom.ppf(0.999, 10_000, 0.001) == 21
    assert not bounds.Bound("", None, 5.0).holds
    assert bounds.Bound("", 6.0, 5.0, least=True).holds and not bounds.Bound("", 4.9, 5.0, least=True).holds
    late = bounds.of_equivalent([30_000] * 60 + [60_000] * 35 + [70_000] * 3 + [-1] * 2)
    assert [(one.figure, one.of, one.holds) for one in late] == [(40, 100, True), (5, 100, True)]
    assert [one.limit for one in bounds.of_fault("junk-0.001", 1.0)] == [6000.0]
    assert bounds.of_fault("short", None) == []


def test_every_figure_of_the_probes_is_printed(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves of repeat_prefix, its power, whole probes, agreement and honesty; and each has its bound."""
    monkeypatch.setattr(prefixes, "SIZES", {0.005: (8,), 0.01: (8,)})
    monkeypatch.setattr(replies, "TOLD", 1)
    monkeypatch.setattr(replies, "PAIRS", 4)
    made = Streams(20, 1, Progress())
    made.__dict__["_probe"] = Probe(choose, 8, 16)
    said: dict[str, Any] = made.probes()
    text = "\n".join([*streams_page.probes(said), *streams_page.of_bounds(made.bounds)])
    for what in ("scorer noise 0.1, against stock", "KL 0.005, verdict", "whole probes of 128 draws", "agreement"):
        assert what in text
    assert said["repeat_prefix"]["null"]["plain"]["runs"] == 20
    assert sum(bound.says.startswith("repeat_prefix") for bound in made.bounds) == 16
    assert sum(bound.says.startswith(("agreement", "honesty")) for bound in made.bounds) == 6


def test_the_figures_held_to_are_those_of_the_faults() -> None:
    """Each is a fault that streams of tokens show."""
    assert set(bounds.BY_E_ALONE) <= set(rates.OF_EVERY_TOKEN)
