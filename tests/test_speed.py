"""Rates, ratios and SpecScore by hand, and how often the intervals cover."""

import math
from typing import Literal

import numpy as np
import pytest
from scipy.stats import binom, t

from gates import speed
from gates.evidence import Arm, Evidence, Pass, Reply
from gates.finding import Score, Speed
from gates.scored import Scored
from loadgen.record import SCORE_DTYPE, Telemetry

S = 1_000_000_000


def reply(
    lane: int, sent: float, end: float, chunks: list[tuple[float, int]], *, said: bool = True, failed: bool = False
) -> Reply:
    return Reply(
        request=lane,
        prompt_id=f"{lane}-{sent}",
        prompt=None,
        lane=lane,
        sent_ns=int(sent * S),
        end_ns=int(end * S),
        chunk_ns=np.array([at * S for at, _ in chunks], np.int64),
        chunk_tokens=np.array([n for _, n in chunks], np.int64) if said else None,
        tokens=sum(n for _, n in chunks),
        failure="timeout" if failed else None,
    )


def of(*replies: Reply, start: dict[str, int] | None = None, end: dict[str, int] | None = None) -> Pass:
    empty = Scored(np.empty(0, SCORE_DTYPE), np.empty(0, np.int64), {})
    return Pass("team", 0, list(replies), empty, start or {}, end or {})


def test_one_lane_is_rated_over_the_whole_pass() -> None:
    """From its first send to its last end, pauses included."""
    found = speed.rate(of(reply(0, 0, 2, [(1, 1), (2, 3)]), reply(0, 2, 5, [(3, 2), (5, 4)])))
    assert found == speed.Rate(2.0, start_ns=0, end_ns=5 * S, window_share=1.0, spread=False, narrowed=False)


def test_lanes_are_rated_while_all_are_busy() -> None:
    """From the last lane's first send (1 s) to the first lane's last end (3 s): 8 of 12 tokens."""
    found = speed.rate(of(reply(0, 0, 3, [(0.5, 2), (2, 4), (3, 1)]), reply(1, 1, 4, [(2, 3), (4, 2)])))
    assert found == speed.Rate(4.0, start_ns=S, end_ns=3 * S, window_share=8 / 12, spread=False, narrowed=False)


def test_lanes_that_were_never_all_busy_are_rated_over_the_whole_pass() -> None:
    """And it says so."""
    found = speed.rate(of(reply(0, 0, 1, [(1, 4)]), reply(1, 2, 4, [(4, 4)])))
    assert found == speed.Rate(2.0, start_ns=0, end_ns=4 * S, window_share=1.0, spread=False, narrowed=True)


def test_arrivals_are_rated_over_the_whole_pass() -> None:
    """With arrivals instead of lanes there is no moment when all lanes are busy."""
    one = of(reply(0, 0, 3, [(2, 4)]), reply(1, 1, 4, [(4, 4)]))
    found = speed.rate(one, open_loop=True)
    assert found is not None and found.tokens_per_s == 2.0


def test_unknown_chunk_sizes_are_spread_evenly_and_flagged() -> None:
    """Usage of 8 over four chunks, the last of them after the window."""
    found = speed.rate(
        of(reply(0, 0, 4, [(1, 1), (2, 1), (3, 1), (4, 5)], said=False), reply(1, 0, 3, [(3, 1)])),
    )
    assert found is not None and found.spread
    assert found.tokens_per_s == pytest.approx(7 / 3)


def test_a_failed_request_counts_its_time() -> None:
    """Four seconds without a token after the failure do not vanish from the rate."""
    found = speed.rate(of(reply(0, 0, 4, [(1, 2)], failed=True), reply(0, 4, 6, [(6, 4)])))
    assert found is not None and found.tokens_per_s == 1.0


def test_nothing_sent_has_no_rate() -> None:
    """None, not 0."""
    assert speed.rate(of()) is None


def test_ratio_is_the_mean_of_logs_with_students_interval() -> None:
    """Two degrees of freedom for three passes: 4.303 standard errors each way."""
    found = speed.ratio([2.0, 2.2, 1.9])
    logs = np.log([2.0, 2.2, 1.9])
    width = t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    assert found.ratio == pytest.approx(math.exp(logs.mean()))
    assert (found.low, found.high) == pytest.approx((math.exp(logs.mean() - width), math.exp(logs.mean() + width)))


def test_a_single_pass_has_no_interval() -> None:
    """Missing bounds are None, not the value."""
    assert speed.ratio([2.0]) == Speed(ratio=2.0, low=None, high=None, passes=[2.0])


def test_a_pass_without_tokens_makes_the_ratio_zero() -> None:
    """A server that served nothing in a pass has no geometric mean."""
    assert speed.ratio([2.0, 0.0]) == Speed(ratio=0.0, low=None, high=None, passes=[2.0, 0.0])


def test_specscore_of_like_profiles_has_their_summed_freedom() -> None:
    """Equal variances of k profiles with n passes: Satterthwaite gives k(n − 1) degrees of freedom."""
    passes = [2.0, 2.2, 1.9]
    speeds = {name: speed.ratio(passes) for name in ("solo", "team", "busy")}
    found = speed.specscore(speeds, list(speeds))
    se = math.sqrt(3 * np.log(passes).var(ddof=1) / 3) / 3
    assert found is not None and found.low is not None
    assert found.value == pytest.approx(speeds["solo"].ratio)
    assert found.low == pytest.approx(found.value * math.exp(-t.ppf(0.975, 6) * se))


def test_specscore_needs_every_profile() -> None:
    """None unless every profile has a speed; 0 where one has none left."""
    one = speed.ratio([2.0, 2.0])
    assert speed.specscore({"solo": one}, ["solo", "team"]) is None
    assert speed.specscore({}, []) is None
    assert speed.specscore({"solo": one, "team": speed.ratio([0.0])}, ["solo", "team"]) == Score(
        value=0.0, low=None, high=None
    )


def test_specscore_of_unlike_profiles_covers() -> None:
    """Of 1,500 sets of three passes with unequal spreads, the 95 % interval misses not more often than it may."""
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(1500):
        speeds = {str(sd): speed.ratio(np.exp(rng.normal(0.5, sd, 3)).tolist()) for sd in (0.02, 0.05, 0.1)}
        found = speed.specscore(speeds, list(speeds))
        assert found is not None and found.low is not None and found.high is not None
        missed += not found.low <= math.exp(0.5) <= found.high
    assert missed <= binom.ppf(0.999, 1500, 0.06)  # Satterthwaite is an approximation: 1 point of grace


def test_acceptance_is_accepted_over_drafts_and_one() -> None:
    """Counters of all passes together; a pass in which the server was restarted says nothing."""
    good = of(start={"drafts": 10, "accepted_tokens": 5}, end={"drafts": 30, "accepted_tokens": 55})
    restarted = of(start={"drafts": 90, "accepted_tokens": 5}, end={"drafts": 3, "accepted_tokens": 9})
    assert speed.acceptance(Arm("candidate", "c", [good, restarted], []), "team") == 3.5


def test_acceptance_of_a_server_that_counts_verify_calls() -> None:
    """SGLang counts neither drafts nor what of them it accepted."""
    one = of(start={"verify_calls": 10, "generation_tokens": 5}, end={"verify_calls": 30, "generation_tokens": 65})
    assert speed.acceptance(Arm("candidate", "c", [one], []), "team") == 3.0


@pytest.mark.parametrize("counters", [{}, {"drafts": 5, "accepted_tokens": 0}], ids=["no counters", "nothing drafted"])
def test_acceptance_is_unknown_without_drafts(counters: dict[str, int]) -> None:
    """None, not 1."""
    assert speed.acceptance(Arm("candidate", "c", [of(start=counters, end=counters)], []), "team") is None


def evidence_of(stock: Arm, candidate: Arm) -> Evidence:
    return Evidence(
        stock=stock,
        candidate=candidate,
        profiles=["team"],
        open_loop=frozenset(),
        runs=[],
        ended=True,
        whole=True,
        paired=True,
        warnings=[],
    )


def arm(role: Literal["stock", "candidate"], cached: int = 0, moved_us: float = 0.0) -> Arm:
    counters = {"prompt_tokens": 1000, "cached_tokens": cached}
    one = of(reply(0, 0, 2, [(1, 1), (2, 3)]), start={"prompt_tokens": 0, "cached_tokens": 0}, end=counters)
    line = Telemetry(
        kind="client", at_ns=1, endpoint=role, profile="team", pass_no=0, values={"clock_moved_us": moved_us}
    )
    return Arm(role, role, [one], [line])


def test_answers_from_a_prefix_cache_are_warned_of() -> None:
    """Fresh prompts find nothing in a cache; a server that reports hits is not measured by its work."""
    quiet = speed.measure(evidence_of(arm("stock"), arm("candidate", cached=5))).warnings
    loud = speed.measure(evidence_of(arm("stock"), arm("candidate", cached=400))).warnings

    assert (len(quiet), len(loud)) == (0, 1)
    assert "candidate: 40 %" in loud[0]


def test_a_clock_that_was_set_is_warned_of() -> None:
    """Kernel stamps follow the wall clock: a pass in which it moved by more than 100 µs says so."""
    quiet = speed.measure(evidence_of(arm("stock", moved_us=40), arm("candidate"))).warnings
    loud = speed.measure(evidence_of(arm("stock"), arm("candidate", moved_us=2500))).warnings

    assert (len(quiet), len(loud)) == (0, 1)
    assert "2500 µs" in loud[0]
