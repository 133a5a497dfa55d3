"""Each check on a small run: its estimate by hand, its outcome, and what it says."""

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, fisher_exact

from factories import FAST, NEUTRAL, SLOW, WARM, Server, Shape, comparison, greedy_mix
from gates import checks, reading
from gates.checks import Checked, Levels, Terms, failures, first_choice, lengths, likelihood, memory
from gates.evidence import Evidence
from gates.finding import Finding

TERMS = Terms(
    required=True,
    pooled=Levels(reject=1e-4, gap=2.5e-4, outside=1e-4),
    profile=Levels(reject=1e-4, gap=2.5e-4, outside=1e-4),
    p_value=1e-5,
    equivalent=0.95,
    replies=100,
    profile_replies=30,
)


def made(path: Path, candidate: Server = FAST, stock: Server = SLOW, shape: Shape | None = None) -> Evidence:
    return reading.load(comparison(path / "run", np.random.default_rng(7), stock, candidate, shape))


def outcomes(checked: Checked) -> dict[str | None, str]:
    return {finding.profile: finding.outcome for finding in checked.findings}


def test_every_check_names_its_settings_and_what_it_spends() -> None:
    """A new check is one new file that has these."""
    assert checks.names() == [
        "agreement",
        "eos",
        "failures",
        "fidelity",
        "first_choice",
        "greedy",
        "honesty",
        "independence",
        "junk",
        "lengths",
        "likelihood",
        "memory",
        "pit",
        "repeat_prefix",
        "tail",
        "two_sample",
    ]
    for name in checks.names():
        module = checks.load(name)
        module.Settings.model_validate({})
        assert module.SEQUENCES >= 0 and module.P_VALUES >= 0


def test_likelihood_adds_up_the_run(tmp_path: Path) -> None:
    """The estimate is log p minus its expectation, averaged over every scored token of the candidate."""
    found = made(tmp_path)
    rows = np.concatenate([one.scored.rows for one in found.candidate.passes])
    logp = rows["logprobs"].astype(float)
    p, last = np.exp(logp), logp[:, -1]
    drawn = np.where(rows["token_id"] < 20, rows["logprob"], last)
    expected = (drawn - (p * logp).sum(1) - (1 - p.sum(1)) * last).mean()
    pooled = likelihood.check(found, likelihood.Settings(), TERMS).findings[0]
    assert pooled.estimate is not None
    assert pooled.estimate.value == pytest.approx(expected, abs=1e-6)
    assert (pooled.estimate.n, pooled.estimate.unit, pooled.estimate.level) == (len(rows), "nat a token", 0.95)
    assert pooled.stock is not None and pooled.stock.level == 0.99


def test_likelihood_margin_is_on_temperature(tmp_path: Path) -> None:
    """|S| + w ≤ margin·Σv: in nat a token the margin is that share of the mean variance."""
    found = made(tmp_path)
    narrow, wide = (
        likelihood.check(found, likelihood.Settings(margin_temperature=margin), TERMS).findings[0]
        for margin in (0.01, 0.1)
    )
    assert narrow.margin is not None and wide.margin is not None
    assert wide.margin == pytest.approx(10 * narrow.margin)
    assert (narrow.outcome, wide.outcome) == ("undecided", "equivalent")


def test_equivalence_says_what_so_few_replies_cannot_show(tmp_path: Path) -> None:
    """A fault in fewer than 3/R of the replies: here R = 480 on either side."""
    pooled = likelihood.check(made(tmp_path), likelihood.Settings(margin_temperature=0.1), TERMS).findings[0]
    assert pooled.says.endswith("a fault in fewer than one of 160 replies would not show")


def test_likelihood_says_the_temperature(tmp_path: Path) -> None:
    """A candidate at .9 is as if sampled at about .9, likelier than stock's own."""
    pooled = likelihood.check(made(tmp_path, WARM), likelihood.Settings(), TERMS).findings[0]
    assert pooled.outcome == "different"
    said = float(pooled.says.rpartition("≈ ")[2])
    assert pooled.says.startswith("replies are likelier")
    assert said == pytest.approx(0.9, abs=0.03)


def test_findings_are_pooled_first_then_one_a_profile(tmp_path: Path) -> None:
    """And a profile's margin is its own."""
    for module in (likelihood, first_choice):
        found = module.check(made(tmp_path / module.__name__), module.Settings(), TERMS).findings
        assert [finding.profile for finding in found] == [None, "solo", "team"]
        assert found[0].margin is not None and found[1].margin is not None
        assert found[1].margin == pytest.approx(3 * found[0].margin, rel=0.1)


def test_first_choice_adds_up_the_run(tmp_path: Path) -> None:
    """Share of tokens in the likeliest set minus that set's mean mass."""
    found = made(tmp_path)
    rows = np.concatenate([one.scored.rows for one in found.candidate.passes])
    expected = ((rows["token_id"] == 0) - np.exp(rows["logprobs"][:, 0].astype(float))).mean()
    pooled = first_choice.check(found, first_choice.Settings(), TERMS).findings[0]
    assert pooled.estimate is not None
    assert pooled.estimate.value == pytest.approx(expected, abs=1e-6)


def test_first_choice_says_how_much_greedy_decoding_it_is_like(tmp_path: Path) -> None:
    """Divided by the mass of the likeliest the residual is exactly a mixture's greedy share of its variance: the figure
    by hand, near the 10 % that were mixed in; of a lossless candidate its interval holds 0."""
    mixed, lossless = (
        first_choice.check(made(tmp_path / name, candidate), first_choice.Settings(), TERMS).findings[0].says
        for name, candidate in (("mixed", Server(sampling=lambda p: greedy_mix(p, 0.1))), ("lossless", FAST))
    )
    rows = np.concatenate([one.scored.rows for one in made(tmp_path / "again", FAST).candidate.passes])
    mass = np.exp(rows["logprobs"][:, 0].astype(float))
    value = (((rows["token_id"] == 0) - mass) / mass).sum() / ((1 - mass) / mass).sum()
    figures = [
        [float(part.replace("−", "-")) for part in re.findall(r"[+−]\d+\.\d", said)] for said in (mixed, lossless)
    ]
    assert figures[0][0] == pytest.approx(10, abs=3) and figures[0][1] > 0
    assert figures[1][0] == pytest.approx(100 * value, abs=0.06)
    assert figures[1][1] < 0 < figures[1][2]


@pytest.mark.parametrize(
    ("candidate", "sampling", "missing"),
    [
        (Server(returns_ids=False, scored=False), NEUTRAL, "candidate returns no token ids in solo"),
        (Server(scored=False), NEUTRAL, "the replies of candidate in solo are not scored"),
        (FAST, NEUTRAL | {"temperature": 0.0}, "solo samples with temperature 0.0"),
        (FAST, NEUTRAL | {"top_p": 0.9}, "solo samples with top_p 0.9"),
    ],
    ids=["no token ids", "not scored", "greedy", "top_p"],
)
def test_a_check_without_data_says_what_is_missing(
    tmp_path: Path, candidate: Server, sampling: dict[str, float], missing: str
) -> None:
    """Undecided, pooled and in every profile; more tokens would not help."""
    checked = likelihood.check(made(tmp_path, candidate, shape=Shape(sampling=sampling)), likelihood.Settings(), TERMS)
    assert outcomes(checked) == {None: "undecided", "solo": "undecided", "team": "undecided"}
    assert all(
        (finding.missing or "").startswith(missing.replace("solo", finding.profile or "solo"))
        for finding in checked.findings
    )
    assert checked.needs_tokens is None


def test_stock_unscored_is_missing_too(tmp_path: Path) -> None:
    """Without A/A nothing tells a fault of the set-up from one of the candidate."""
    checked = likelihood.check(made(tmp_path, stock=Server(scored=False)), likelihood.Settings(), TERMS)
    assert (checked.findings[0].missing or "").startswith("the replies of stock in solo are not scored")


def test_a_reference_of_another_model_is_a_broken_set_up(tmp_path: Path) -> None:
    """Stock's own replies are outside the margin: undecided, and it says where to look."""
    pooled = likelihood.check(made(tmp_path, WARM, WARM), likelihood.Settings(margin_temperature=0.02), TERMS).findings[
        0
    ]
    assert pooled.outcome == "undecided"
    assert "the set-up is broken" in pooled.says


def failing(path: Path, candidate: float, stock: float = 0.0, requests: int = 60, terms: Terms = TERMS) -> Finding:
    found = made(path, Server(failing=candidate), Server(failing=stock), Shape(requests=requests, mean_tokens=4))
    return failures.check(found, failures.Settings(), terms).findings[0]


def test_no_failure_in_three_hundred_is_within_a_point(tmp_path: Path) -> None:
    """The 95 % upper bound is 1 − .05^(1/n): under 1 % from 299 requests."""
    enough = failing(tmp_path / "a", 0, requests=50)
    assert enough.estimate is not None and enough.estimate.high == pytest.approx(1 - 0.05 ** (1 / 300))
    assert (enough.outcome, enough.estimate.value, enough.estimate.n) == ("equivalent", 0.0, 300)
    assert failing(tmp_path / "b", 0, requests=49).outcome == "undecided"


def test_dropped_requests_are_different(tmp_path: Path) -> None:
    """A tenth of the requests, none on stock."""
    found = failing(tmp_path, 0.1)
    assert found.outcome == "different"
    assert "connection_reset" in found.says


def test_equal_failures_are_not_different(tmp_path: Path) -> None:
    """Two servers that fail alike differ by chance alone."""
    assert failing(tmp_path, 0.1, 0.1).outcome != "different"


def test_what_the_client_cancelled_is_no_failure(tmp_path: Path) -> None:
    """It is not even a request that was answered or not."""
    found = made(tmp_path, Server(failing=1.0, failure="cancelled"))
    assert failures.check(found, failures.Settings(), TERMS).findings[0].missing == "no pass has ended on candidate"


@pytest.mark.parametrize(
    ("failed", "n", "stock_failed", "m"), [(5, 100, 0, 100), (3, 40, 2, 90), (0, 10, 0, 10), (7, 7, 1, 9)]
)
def test_p_of_more_failures_is_fishers(failed: int, n: int, stock_failed: int, m: int) -> None:
    """One-sided, conditional on how many failed in all."""
    expected = fisher_exact([[failed, n - failed], [stock_failed, m - stock_failed]], alternative="greater").pvalue
    assert failures.p_more(failed, n, stock_failed, m) == pytest.approx(expected)


def test_clopper_pearson_bounds_leave_their_level_in_each_tail() -> None:
    """At the upper bound, so few or fewer have probability 5 %; at the lower, so many or more."""
    low, high = failures.bounds(4, 200, 0.95)
    assert binom.cdf(4, 200, high) == pytest.approx(0.05)
    assert binom.sf(3, 200, low) == pytest.approx(0.05)
    assert failures.bounds(0, 20, 0.95)[0] == 0.0
    assert failures.bounds(20, 20, 0.95)[1] == 1.0


def test_requests_needed_reach_the_margin() -> None:
    """300 in all without a failure; none are enough where the rate itself is beyond the margin."""
    needed = failures.requests_needed(0, 100, 0.01, 0.95)
    assert needed is not None and 199 <= needed <= 210
    assert failures.requests_needed(2, 100, 0.01, 0.95) is None


def test_lengths_are_described_not_judged(tmp_path: Path) -> None:
    """Same prompts, another mean: a ratio with an interval, and no outcome beyond undecided."""
    found = lengths.check(made(tmp_path), lengths.Settings(), dataclasses.replace(TERMS, required=False))
    assert set(outcomes(found).values()) == {"undecided"}
    assert found.findings[0].margin is None and found.findings[0].estimate is not None


def test_length_ratio_by_hand() -> None:
    """Paired: the spread of the relative differences; unpaired: of both."""
    candidate, stock = np.array([10.0, 20, 30]), np.array([12.0, 18, 20])
    paired = lengths.ratio(candidate, stock, paired=True, level=0.95)
    assert paired is not None and paired.high is not None
    e = candidate / 20 - stock / stock.mean()
    assert paired.value == pytest.approx(1.2)
    assert paired.high == pytest.approx(1.2 * math.exp(1.959964 * e.std(ddof=1) / math.sqrt(3)))
    unpaired = lengths.ratio(candidate, stock, paired=False, level=0.95)
    assert unpaired is not None and unpaired.high is not None and unpaired.high > paired.high
    assert lengths.ratio(candidate[:1], stock[:1], paired=True, level=0.95) is None


def test_length_intervals_cover() -> None:
    """Of 500 samples of 80 pairs with heavy tails, at most the binomial's share of 5 % (and 2 points of grace) miss."""
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(500):
        prompts = rng.lognormal(3, 0.5, 80)
        found = lengths.ratio(*(prompts * rng.lognormal(0, 0.5, 80) for _ in "ab"), paired=True, level=0.95)
        assert found is not None and found.low is not None and found.high is not None
        missed += not found.low <= 1 <= found.high
    assert missed <= binom.ppf(0.999, 500, 0.07)


@pytest.mark.parametrize(
    ("candidate", "stock", "outcome"),
    [
        (94_096.0, 90_000.0, "equivalent"),
        (94_097.0, 90_000.0, "different"),
        (94_097.0, None, "different"),
        (95_000.0, 95_000.0, "undecided"),
        (None, 90_000.0, "undecided"),
    ],
    ids=["just within", "just above", "stock unknown", "stock above as well", "unknown"],
)
def test_memory_against_what_is_allowed(
    tmp_path: Path, candidate: float | None, stock: float | None, outcome: str
) -> None:
    """90 % of 100,000 MiB and 4,096 more; a limit that stock breaks as well does not fit the set-up."""
    found = memory.check(made(tmp_path, Server(peak_mib=candidate), Server(peak_mib=stock)), memory.Settings(), TERMS)
    assert outcomes(found) == {None: outcome}
    assert (found.findings[0].missing is None) == (candidate is not None)
