"""fidelity: the log-probabilities that a server reports, against the reference's of the same tokens."""

import math

import numpy as np
import pytest
from probing import OFTEN, TERMS, both, probed, record, sampled
from scipy import stats

from arms import P
from gates.checks import fidelity
from gates.checks.fidelity import Settings
from gates.evidence import Evidence
from gates.finding import Finding
from gates.probes import NOTHING, Probed
from loadgen.record import Logprob, Probe

TOKENS = 100
FIXED: Probe = "fixed_text"


def texts(rng: np.random.Generator, off: float, count: int = 4, kind: Probe = FIXED) -> Probed:
    """Texts of TOKENS tokens, whose reported log-probabilities are off by |normal noise| of a mean of `off` nat."""
    records, laws = [], []
    for number in range(count):
        logp = np.log(P[rng.integers(len(P), size=TOKENS)])
        ids = sampled(np.exp(logp), rng)
        noise = off * math.sqrt(math.pi / 2) * rng.standard_normal(TOKENS)
        own = logp[np.arange(TOKENS), ids] + noise
        told = [Logprob(token_id=int(i), token=None, logprob=float(x), top=[]) for i, x in zip(ids, own, strict=True)]
        records.append(record(number, kind, f"text-{number}", ids.tolist(), logprobs=told))
        laws.append(logp)
    return probed(records, laws)


def finding(found: Evidence, floor: float = 0.002) -> Finding:
    (only,) = fidelity.check(found, Settings(floor=floor), TERMS).findings
    return only


def test_the_estimate_is_the_mean_with_its_t_interval() -> None:
    """Over runs of 16 tokens, six of each text of 100; what is over at a text's end is left out."""
    found = both(FIXED, texts(np.random.default_rng(1), 0.001), texts(np.random.default_rng(2), 0.01))
    runs = np.concatenate(
        [off[:96].reshape(6, 16).mean(axis=1) for off in fidelity.differences(found.candidate, FIXED)]
    )
    low, high = stats.t.interval(0.95, 23, runs.mean(), stats.sem(runs))
    estimate = finding(found).estimate

    assert estimate is not None
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((runs.mean(), low, high))
    assert (estimate.n, estimate.level) == (384, 0.95)


def test_the_chance_is_students_of_the_logarithms() -> None:
    """Against scipy's one-sided t test of the runs' logarithms."""
    runs = np.random.default_rng(3).gamma(8, 0.001, 20)
    expected = stats.ttest_1samp(np.log(runs), math.log(0.006), alternative="greater").pvalue

    assert fidelity.p_above(runs, 0.006) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("own", "of_stock", "outcome"),
    [(0.0, 0.0, "equivalent"), (0.001, 0.0, "equivalent"), (0.01, 0.0, "different"), (0.01, 0.01, "equivalent")],
    ids=["the same", "under the floor", "quantized", "as far off as stock"],
)
def test_a_quantized_forward_pass_is_found(own: float, of_stock: float, outcome: str) -> None:
    """The ceiling is .002 nat, or three times what stock itself is off by."""
    found = finding(both(FIXED, texts(np.random.default_rng(4), of_stock), texts(np.random.default_rng(5), own)))

    assert found.outcome == outcome
    assert found.margin == max(0.002, 3 * (found.stock.high or 0)) if found.stock else None


def test_a_candidate_at_the_ceiling_is_called_different_no_more_often_than_the_level_says() -> None:
    """Of 500 candidates off by exactly the ceiling, .02 nat: at most 40 at .05 (99.9 % binomial)."""
    rng = np.random.default_rng(6)
    stock = texts(rng, 0.0, count=2)
    outcomes = [
        fidelity.check(both(FIXED, stock, texts(rng, 0.02, count=2)), Settings(floor=0.02), OFTEN).findings[0].outcome
        for _ in range(500)
    ]

    assert outcomes.count("different") <= stats.binom.ppf(0.999, 500, 0.05)
    assert outcomes.count("equivalent") <= stats.binom.ppf(0.999, 500, 0.05)


def test_fixed_texts_and_ordinary_replies_are_two_findings() -> None:
    """A path that only decoding takes shows in replies alone."""
    rng = np.random.default_rng(7)
    found = both(FIXED, texts(rng, 0), texts(rng, 0))
    for arm, off in ((found.stock, 0.0), (found.candidate, 0.05)):
        arm.probes[arm.label, "logprobs"] = texts(rng, off, kind="logprobs")  # type: ignore[index]
    findings = fidelity.check(found, Settings(), TERMS).findings

    assert [(one.stratum, one.outcome) for one in findings] == [
        ("fixed texts", "equivalent"),
        ("ordinary replies", "different"),
    ]


def silent(found: Probed) -> Probed:
    """The same, from a server that reports nothing of its own."""
    records = tuple(record(n, FIXED, one.prompt_id, one.token_ids) for n, one in enumerate(found.records))
    return Probed(records, found.scores)


def test_without_data_it_says_what_is_missing() -> None:
    """No probe, or a server without log-probabilities of its own: undecided."""
    stock = texts(np.random.default_rng(8), 0)
    none = finding(both(FIXED, stock, NOTHING))
    quiet = fidelity.check(both(FIXED, stock, silent(stock)), Settings(), TERMS).findings[0]

    assert (none.outcome, quiet.outcome) == ("undecided", "undecided")
    assert none.missing is not None and none.missing.startswith("no probe fixed_text of candidate: `loadgate compare`")
    assert quiet.missing == "candidate reports no log-probabilities of its own"
