"""agreement: two replies to one prompt are two draws, and kept or commonly seeded ones are found."""

import itertools
import math

import numpy as np
import pytest
from probing import OFTEN, TERMS, arm, both, evidence, padded, probed, record, sampled
from scipy.stats import binom

from arms import P
from factories import Floats
from gates.checks import agreement
from gates.checks.agreement import Places, Settings
from gates.evidence import Evidence
from gates.finding import Finding
from gates.probes import NOTHING, Probed
from loadgen.record import Failure, Record

FOUR = np.array([0.5, 0.25, 0.125, 0.125])
AGREEING = float((FOUR**2).sum())


def patterns(n: int) -> list[tuple[Places, float]]:
    """Every way in which n places may agree, and its chance for two independent replies."""
    found = []
    for agree in itertools.product((0.0, 1.0), repeat=n):
        chance = math.prod(AGREEING if one else 1 - AGREEING for one in agree)
        found.append((Places(np.array(agree), np.full(n, AGREEING)), chance))
    return found


def test_independent_replies_gather_no_evidence_on_the_mean() -> None:
    """Over all patterns of six places the mean of E is 1 after every place."""
    mean = sum(chance * np.exp(places.log_e) for places, chance in patterns(6))

    assert mean == pytest.approx(np.ones(6), abs=1e-12)


@pytest.mark.parametrize("level", [0.5, 0.2, 0.1, 0.05, 0.01, 0.002])
def test_the_p_value_is_one(level: float) -> None:
    """P(p ≤ level) ≤ level, summed over all patterns of ten places."""
    assert sum(chance for places, chance in patterns(10) if places.p_value <= level) <= level


def test_two_first_tokens_agree_as_often_as_their_law_says() -> None:
    """Over the 16 pairs of a law of four tokens, from records to places: the mean of agree − chance is 0."""
    law = np.log(padded(FOUR[None]))
    total = 0.0
    for first, second in itertools.product(range(4), repeat=2):
        twins = [record(number, "repeat_audit", "p", [token]) for number, token in enumerate((first, second))]
        found = agreement.places(probed(twins, [law, law]))
        total += FOUR[first] * FOUR[second] * float(found.agree[0] - found.chance[0])

    assert total == pytest.approx(0, abs=1e-6)  # scores are single precision


def test_places_end_with_the_first_difference() -> None:
    """After one other token the two replies have different pasts, and their laws nothing in common."""
    law = np.log(padded(np.tile(FOUR, (3, 1))))
    twins = [record(1, "repeat_audit", "p", [0, 1, 2]), record(2, "repeat_audit", "p", [0, 3, 2])]

    assert agreement.places(probed(twins, [law, law])).agree.tolist() == [1.0, 0.0]


def test_replies_are_taken_two_by_two_and_prompt_by_prompt() -> None:
    """A third reply has no partner, a reply without ids is none."""
    replies = [record(n, "repeat_audit", prompt, ids) for n, (prompt, ids) in enumerate(REPLIES)]

    assert [(one.sent_ns, other.sent_ns) for one, other in agreement.pairs(replies)] == [(0, 2)]


REPLIES: list[tuple[str, list[int] | None]] = [("a", [1]), ("b", [1]), ("a", [2]), ("a", [3]), ("b", None)]


def audit(rng: np.random.Generator, copied: float = 0.0, prompts: int = 32, second_ns: int = 10**8) -> Probed:
    """Prompts answered twice, this share of them by one reply; the second time within second_ns instead of 10⁸ ns."""
    records: list[Record] = []
    laws: list[Floats] = []
    for prompt in range(prompts):
        path = P[rng.integers(len(P), size=12)]
        one = sampled(path, rng).tolist()
        other = one if rng.random() < copied else sampled(path, rng).tolist()
        for ids, start, took in ((one, prompt * 10**9, 10**8), (other, prompt * 10**9 + 10**8, second_ns)):
            number = len(records)
            stamps = {"sent_ns": start, "end_ns": start + took}
            records.append(record(number, "repeat_audit", str(prompt), ids, **stamps))
            laws.append(np.log(path))
    return probed(records, laws)


def finding(found: Evidence) -> Finding:
    (only,) = agreement.check(found, Settings(), TERMS).findings
    return only


def test_kept_replies_are_found() -> None:
    """Where half of the 32 prompts get their first reply again, P ≤ 2.5·10⁻⁵, and the sentence says as what it is."""
    rng = np.random.default_rng(1)
    found = finding(both("repeat_audit", audit(rng), audit(rng, copied=0.5)))

    assert found.outcome == "different"
    assert "kept and given again" in found.says


def test_independent_replies_pass() -> None:
    """With an interval that holds 0 on both sides."""
    rng = np.random.default_rng(2)
    found = finding(both("repeat_audit", audit(rng), audit(rng)))

    assert found.outcome == "passed"
    assert found.estimate is not None and found.estimate.low is not None and found.estimate.high is not None
    assert found.estimate.low < 0 < found.estimate.high


def test_what_stock_does_too_is_no_difference() -> None:
    """Both keep half of their replies: of 100 comparisons at .05 at most 13 (99.9 % binomial) are called different."""
    rng = np.random.default_rng(3)
    outcomes = [
        agreement.check(both("repeat_audit", audit(rng, 0.5), audit(rng, 0.5)), Settings(), OFTEN).findings[0].outcome
        for _ in range(100)
    ]

    assert outcomes.count("different") <= binom.ppf(0.999, 100, 0.05)


def test_lossless_replies_are_called_different_no_more_often_than_the_level_says() -> None:
    """Of 1,000 audits of about 100 places, by the reference alone: at most 72 at .05 (99.9 % binomial)."""
    rng = np.random.default_rng(4)
    chance = (P**2).sum(axis=1)
    chances = []
    for _ in range(1000):
        places = rng.choice(chance, 100)
        chances.append(Places((rng.random(100) < places).astype(float), places).p_value)

    assert sum(p <= 0.05 for p in chances) <= binom.ppf(0.999, 1000, 0.05)


def test_a_second_time_that_is_much_faster_is_said() -> None:
    """Ten times as fast a token as the first, where stock's is not: as from a cache."""
    rng = np.random.default_rng(5)

    assert "10.0 times as fast" in finding(both("repeat_audit", audit(rng), audit(rng, second_ns=10**7))).says
    assert "as fast" not in finding(both("repeat_audit", audit(rng, second_ns=10**7), audit(rng, second_ns=10**7))).says


NO_IDS = Probed((record(1, "repeat_audit", "a", None),), {})
FAILED = Probed(
    (record(1, "repeat_audit", "a", None, failure=Failure(kind="http_status", detail="500: no", status=500)),), {}
)
NO_SCORES = Probed((record(1, "repeat_audit", "a", [1]),), {})
ONCE = probed([record(1, "repeat_audit", "a", [1])], [np.log(P[:1])])


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        (NOTHING, "no probe repeat_audit of candidate"),
        (NO_IDS, "brought no token ids from candidate"),
        (FAILED, "brought no token ids from candidate: 1 of 1 requests failed, http_status"),
        (NO_SCORES, "of candidate is not scored: `loadgate score"),
        (ONCE, "no prompt of the repeat audit was answered twice"),
    ],
    ids=["no probe", "no ids", "failed", "no scores", "no pair"],
)
def test_without_data_it_says_what_is_missing(found: Probed, missing: str) -> None:
    """Undecided, never passed."""
    one = finding(
        evidence(arm("stock", "repeat_audit", audit(np.random.default_rng(6))), arm("candidate", "repeat_audit", found))
    )

    assert one.outcome == "undecided"
    assert one.missing is not None and missing in one.missing
