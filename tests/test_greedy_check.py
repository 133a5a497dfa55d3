"""greedy: tokens at temperature 0 that are clearly not the likeliest, by replies, against stock's own."""

import numpy as np
import pytest
from probing import OFTEN, TERMS, both, probed, record
from scipy.stats import binom, fisher_exact

from factories import Floats
from gates.checks import greedy
from gates.checks.failures import p_more
from gates.checks.greedy import Settings
from gates.evidence import Evidence
from gates.finding import Finding
from gates.probes import NOTHING, Probed

TOKENS = 40
CLEAR = np.log(np.r_[0.7, 0.2, np.full(22, 0.1 / 22)])  # the second lies 1.25 nat below
NEAR = np.log(np.r_[0.41, 0.40, np.full(22, 0.19 / 22)])  # and here .025


def replies(rng: np.random.Generator, near: float = 0.0, clear: float = 0.0, count: int = 32) -> Probed:
    """Replies of which a token is the second choice with this chance: at a near-tie (every tenth place), elsewhere."""
    laws: Floats = np.tile(CLEAR, (TOKENS, 1))
    laws[::10] = NEAR
    second = np.full(TOKENS, clear)
    second[::10] = near
    ids = [(rng.random(TOKENS) < second).astype(int).tolist() for _ in range(count)]
    return probed([record(n, "greedy", str(n), one) for n, one in enumerate(ids)], [laws] * count)


def finding(found: Evidence) -> Finding:
    (only,) = greedy.check(found, Settings(), TERMS).findings
    return only


def test_a_wrong_argmax_is_found() -> None:
    """One token in 20 clearly below the likeliest: nearly every reply holds one, none of stock's does."""
    rng = np.random.default_rng(1)
    found = finding(both("greedy", replies(rng), replies(rng, clear=0.05)))

    assert found.outcome == "different"
    assert found.estimate is not None and found.estimate.value > 0.7


def test_near_ties_go_either_way() -> None:
    """Half of the near-ties decided otherwise: passed, and the sentence says how alike the texts are."""
    rng = np.random.default_rng(2)
    found = finding(both("greedy", replies(rng), replies(rng, near=0.5)))

    assert found.outcome == "passed"
    assert "0 of 32 replies at temperature 0" in found.says


def test_equal_servers_are_called_different_no_more_often_than_the_level_says() -> None:
    """Both err at one token in 200: of 500 comparisons at .05 at most 40 (99.9 % binomial) are called different."""
    rng = np.random.default_rng(3)
    outcomes = [
        greedy.check(
            both("greedy", replies(rng, clear=0.005, count=12), replies(rng, clear=0.005, count=12)), Settings(), OFTEN
        )
        .findings[0]
        .outcome
        for _ in range(500)
    ]

    assert outcomes.count("different") <= binom.ppf(0.999, 500, 0.05)


def test_the_threshold_is_one_in_a_thousand_of_stocks_tokens() -> None:
    """Its 99.9 % quantile, the next of its gaps above; never a near-tie's .05 nat."""
    gaps = [np.linspace(0, 1, 1001), np.linspace(0, 1, 1000)]
    every = np.sort(np.concatenate(gaps))

    assert greedy.threshold(gaps) == every[int(np.ceil(0.999 * (len(every) - 1)))]
    assert greedy.threshold([np.full(100, 0.01)]) == 0.05


def test_the_chance_is_fishers() -> None:
    """Of so many replies or more on the candidate's side, given how many there are in all."""
    expected = fisher_exact([[9, 23], [1, 31]], alternative="greater").pvalue

    assert p_more(9, 32, 1, 32) == pytest.approx(expected)


def test_a_token_of_no_chance_is_below_any_threshold() -> None:
    """Its log-probability is −∞; where the reference gives none, nothing is said of it."""
    found = replies(np.random.default_rng(4), count=2)
    rows = [found.scores[n].copy() for n in (0, 1)]
    rows[0]["logprob"][3], rows[1]["logprob"][3] = -np.inf, np.nan
    evidence = both("greedy", found, Probed(found.records, dict(enumerate(rows))))

    assert [float(gaps.max()) for gaps in greedy.gaps_below(evidence.candidate)] == [np.inf, 0.0]


def test_a_token_that_is_not_listed_is_at_most_as_likely_as_the_last_that_is() -> None:
    """A reference that samples itself tells nothing of it: junk beyond the 20 likeliest is seen all the same."""
    law = np.log(np.r_[0.7, 0.2, np.linspace(0.01, 0.001, 22)])
    found = probed([record(0, "greedy", "0", [0, 23, 0])], [np.tile(law, (3, 1))])
    found.scores[0]["logprob"][1] = np.nan
    (gaps,) = greedy.gaps_below(both("greedy", found, found).candidate)

    assert gaps == pytest.approx([0, law[0] - law[19], 0])


def test_texts_are_compared_token_by_token() -> None:
    """Two of three replies are alike; the third differs after two of its four tokens."""
    laws = [np.tile(CLEAR, (4, 1))] * 3
    stock = probed([record(n, "greedy", str(n), [0, 0, 0, 0]) for n in range(3)], laws)
    mine = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    candidate = probed([record(n, "greedy", str(n), ids) for n, ids in enumerate(mine)], laws)

    assert greedy.agreement(both("greedy", stock, candidate)) == greedy.Agreement(2, 3, before=10, tokens=12)


def test_without_data_it_says_what_is_missing() -> None:
    """Undecided, never passed."""
    found = finding(both("greedy", replies(np.random.default_rng(5)), NOTHING))

    assert found.outcome == "undecided"
    assert found.missing is not None and found.missing.startswith("no probe greedy of candidate")
