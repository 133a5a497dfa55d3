"""The summary of a run: what is counted, what is timed, and that intervals cover."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gates import intervals, latency
from loadgen.record import Anchor, Failure, FailureKind, Record, Run, RunWriter, Usage

MS = 1_000_000
ANCHOR = Anchor(host="h", boot_id=None, monotonic_ns=0, realtime_ns=0, error_ns=0, stamps="virtual")
LANES = {"lanes": 2, "requests": 4}


def reply(lane: int = 0, sent_ms: int = 0, chunks_ms: Iterable[int] = (100, 110, 130), **changes: Any) -> Record:
    """A reply whose chunks carry one token each, unless the changes say otherwise."""
    stamps = [at * MS for at in chunks_ms]
    plain = Record(
        id="0" * 32,
        endpoint="stock",
        profile="team",
        pass_no=0,
        lane=lane,
        phase="timed",
        prompt_id=f"team-0-{lane}",
        asked={},
        sent_ns=sent_ms * MS,
        end_ns=(stamps[-1] if stamps else sent_ms * MS) + 5 * MS,
        chunk_ns=stamps,
        chunk_tokens=[1] * len(stamps),
        chunk_ambiguous=[False] * len(stamps),
        token_ids=list(range(len(stamps))),
    )
    return dataclasses.replace(plain, **changes)


def failed(kind: FailureKind = "rate_limited", **changes: Any) -> Record:
    return reply(**{"chunks_ms": [], "token_ids": None, "failure": Failure(kind=kind, detail=""), **changes})


def summary(path: Path, records: list[Record], profile: dict[str, Any] = LANES, passes: int = 1) -> latency.Summary:
    asked = {"passes": passes, "profiles": {"team": profile}, "endpoints": {"stock": {}}}
    writer = RunWriter(path / "run", asked, ANCHOR)
    for record in records:
        writer.record(record)
    writer.end("done", {})
    return latency.summarise(Run.open(path / "run"))


def only(path: Path, records: list[Record], profile: dict[str, Any] = LANES) -> latency.Load:
    (load,) = summary(path, records, profile).loads
    return load


def middle(quantiles: latency.Quantiles | None) -> float:
    assert quantiles is not None
    return quantiles["p50"].value


def test_one_request_gives_figures_without_a_bound(tmp_path: Path) -> None:
    """One reply has a median, and no interval: it bounds neither side."""
    load = only(tmp_path, [reply()])
    assert load.ttft_ms is not None
    assert load.ttft_ms["p50"].model_dump(include={"value", "low", "high", "n"}) == {
        "value": 100.0,
        "low": None,
        "high": None,
        "n": 1,
    }
    assert (middle(load.itl_ms), middle(load.tpot_ms), middle(load.e2e_ms)) == (15.0, 15.0, 135.0)
    assert (load.asked, load.ended, load.succeeded, load.tokens) == (4, 1, 1, 3)


def test_no_success_gives_no_figure(tmp_path: Path) -> None:
    """A server that refuses everything is not fast: nothing is timed, everything is counted."""
    load = only(tmp_path, [failed(), failed(lane=1), failed("timeout", lane=2)])
    assert (load.ended, load.succeeded, load.failed) == (3, 0, {"rate_limited": 2, "timeout": 1})
    figures = [load.ttft_ms, load.itl_ms, load.tpot_ms, load.e2e_ms, load.output_tokens_per_s, load.requests_per_s]
    assert figures == [None] * 6
    assert load.tokens is None
    assert load.ambiguous_gaps is None


def test_failed_requests_are_not_fast_requests(tmp_path: Path) -> None:
    """Refusals after a millisecond leave every latency as it was, and lower the rate by the time they took."""
    good = only(tmp_path / "good", [reply(lane=lane) for lane in range(4)])
    refusals = [failed(lane=lane, sent_ms=135, end_ns=270 * MS) for lane in range(4)]
    mixed = only(tmp_path / "mixed", [*(reply(lane=lane) for lane in range(4)), *refusals])
    assert mixed.ttft_ms == good.ttft_ms
    assert mixed.e2e_ms == good.e2e_ms
    assert good.requests_per_s is not None
    assert mixed.requests_per_s is not None
    assert mixed.requests_per_s.value == pytest.approx(good.requests_per_s.value / 2)


def test_only_timed_traffic_counts(tmp_path: Path) -> None:
    """Warm-up, calibration and probes have their own phases and are not in the summary."""
    others = [reply(phase="warmup"), reply(phase="calibrate"), reply(phase="probe", probe="greedy")]
    assert only(tmp_path, [reply(), *others]).ended == 1


def test_chunks_are_not_tokens(tmp_path: Path) -> None:
    """Three chunks of 1, 4 and 3 tokens: two gaps, and the span over the seven tokens that came in it."""
    load = only(tmp_path, [reply(chunks_ms=(100, 140, 170), chunk_tokens=[1, 4, 3], token_ids=list(range(8)))])
    assert load.itl_ms is not None
    assert (middle(load.itl_ms), load.itl_ms["p50"].n, load.itl_ms["p50"].unit) == (35.0, 2, "gaps of 1 replies")
    assert (middle(load.tpot_ms), load.tokens) == (10.0, 8)


def test_unknown_token_counts_stay_unknown(tmp_path: Path) -> None:
    """Text without ids or usage has latencies, and no tokens a second."""
    text = {"token_ids": None, "chunk_tokens": [None, None, None]}
    load = only(tmp_path, [reply(**text)])
    assert (load.tokens, load.output_tokens_per_s, load.tpot_ms) == (None, None, None)
    assert middle(load.ttft_ms) == 100.0


def test_usage_counts_the_tokens_of_a_text_reply(tmp_path: Path) -> None:
    """The server's own count is used where there are no ids: 6 tokens, 5 of them after the first chunk."""
    text = {"token_ids": None, "chunk_tokens": [None, None, None], "usage": Usage(completion_tokens=6)}
    load = only(tmp_path, [reply(**text)])
    assert (load.tokens, middle(load.tpot_ms)) == (6, 6.0)
    assert load.output_tokens_per_s is not None
    assert load.output_tokens_per_s.value == pytest.approx(6 / 0.135)


def test_gaps_inside_one_read_are_counted_as_ambiguous(tmp_path: Path) -> None:
    """Of four gaps the one between two chunks of the same read has no length of its own."""
    together = {"chunk_ambiguous": [False, True, True, False, False]}
    load = only(tmp_path, [reply(chunks_ms=(100, 120, 120, 140, 160), **together)])
    assert load.ambiguous_gaps == 0.25


def test_an_open_schedule_counts_from_when_the_request_was_due(tmp_path: Path) -> None:
    """A request sent 50 ms late waited 50 ms longer than its own clock says."""
    arrivals = {"arrivals": {"kind": "constant", "rate_per_s": 10}, "requests": 2}
    records = [reply(due_ns=0), reply(due_ns=100 * MS, sent_ms=150, chunks_ms=(250, 260))]
    load = only(tmp_path, records, arrivals)
    assert (middle(load.ttft_ms), middle(load.ttft_from_due_ms)) == (100.0, 125.0)
    assert (load.asked_per_s, load.sent_per_s) == (pytest.approx(10.0), pytest.approx(1 / 0.15))
    assert load.lateness_ms is not None
    assert load.lateness_ms["p99"].value == pytest.approx(49.5)
    assert load.lanes is None


def test_a_closed_loop_has_no_due_figures(tmp_path: Path) -> None:
    """The first request of a lane has a due time for its staggered start; that makes no open schedule."""
    load = only(tmp_path, [reply(due_ns=0), reply(lane=1, due_ns=None)])
    assert (load.ttft_from_due_ms, load.asked_per_s, load.lateness_ms, load.lanes) == (None, None, None, 2)


def test_the_first_wave_is_summed_up_apart(tmp_path: Path) -> None:
    """What all lanes send at the start waits longest; a failed first request leaves its lane's second a later one."""
    first = [reply(chunks_ms=(300,)), failed(lane=1)]
    later = [reply(lane=lane, sent_ms=500, chunks_ms=(520,)) for lane in (0, 1)]
    load = only(tmp_path, first + later)
    assert load.ttft_first_ms is not None
    assert load.ttft_later_ms is not None
    assert (middle(load.ttft_first_ms), load.ttft_first_ms["p50"].n) == (300.0, 1)
    assert (middle(load.ttft_later_ms), load.ttft_later_ms["p50"].n) == (20.0, 2)


def test_one_request_a_lane_has_no_waves(tmp_path: Path) -> None:
    """Where every request is its lane's first, there is nothing to tell apart."""
    load = only(tmp_path, [reply(), reply(lane=1)])
    assert (load.ttft_first_ms, load.ttft_later_ms) == (None, None)


def test_requests_in_flight_are_what_was_delivered(tmp_path: Path) -> None:
    """Two lanes busy all the time are two in flight; one that idles half the time is half a lane."""
    busy = [reply(lane=lane, sent_ms=sent, chunks_ms=(sent + 100,), end_ns=(sent + 200) * MS)
            for lane in (0, 1) for sent in (0, 200)]  # fmt: skip
    assert only(tmp_path / "busy", busy).in_flight == pytest.approx(2.0)
    assert only(tmp_path / "idle", busy[:3]).in_flight == pytest.approx(1.5)


def test_rates_say_what_their_interval_rests_on(tmp_path: Path) -> None:
    """Several passes: t over passes. One: t over batch means."""
    several = only(tmp_path / "several", [reply(pass_no=0), reply(pass_no=1, chunks_ms=(100, 110, 150))])
    assert several.output_tokens_per_s is not None
    assert several.output_tokens_per_s.method == "t over passes"
    assert several.output_tokens_per_s.value == pytest.approx((3 / 0.135 + 3 / 0.155) / 2)
    single = only(tmp_path / "single", [reply()])
    assert single.output_tokens_per_s is not None
    assert single.output_tokens_per_s.method == "t over 10 batch means of one pass"


def test_endpoints_and_profiles_are_summed_up_apart(tmp_path: Path) -> None:
    """In the order of run.json, those that sent nothing left out."""
    asked = {
        "passes": 1,
        "profiles": {"solo": {}, "team": {}},
        "endpoints": {"stock": {}, "candidate": {}, "idle": {}},
    }
    writer = RunWriter(tmp_path / "run", asked, ANCHOR)
    for profile in ("team", "solo"):
        for endpoint in ("candidate", "stock"):
            writer.record(reply(endpoint=endpoint, profile=profile))
    writer.end("interrupted", {})
    found = latency.summarise(Run.open(tmp_path / "run"))
    assert [(load.profile, load.endpoint) for load in found.loads] == [
        ("solo", "stock"),
        ("solo", "candidate"),
        ("team", "stock"),
        ("team", "candidate"),
    ]
    assert not found.complete
    assert found.of("stock", "team") is not None
    assert found.of("idle", "team") is None


@pytest.mark.parametrize(("q", "n"), [(0.5, 20), (0.9, 100), (0.99, 800)])
def test_the_interval_of_a_quantile_covers_it(q: float, n: int) -> None:
    """Of 1,000 samples at least 95 % (less three binomial deviations) have the quantile between their ends."""
    rng = np.random.default_rng(7)
    truth = -np.log(1 - q)
    found = [intervals.order_statistic(np.sort(rng.exponential(size=n)), q) for _ in range(1000)]
    covered = sum((e.low is None or e.low <= truth) and (e.high is None or truth <= e.high) for e in found)
    assert covered >= 950 - 3 * 7


def test_ranks_agree_with_the_binomial_of_the_standard_library() -> None:
    """For the median of 10 the ends are the 2nd and the 9th value: 97.9 %, and one rank further in is under 95 %."""
    found = intervals.order_statistic(np.arange(1.0, 11.0), 0.5)
    assert (found.low, found.high) == (2.0, 9.0)


def test_a_small_sample_does_not_bound_its_tail() -> None:
    """The p99 of 300 requests has no upper end; of 400 it has."""
    assert intervals.order_statistic(np.arange(300.0), 0.99).high is None
    assert intervals.order_statistic(np.arange(400.0), 0.99).high is not None


def test_the_interval_of_gaps_allows_for_their_likeness_within_a_reply() -> None:
    """Replies that are each slow or fast throughout: the clustered interval covers, and is wider than a naive one."""
    rng = np.random.default_rng(11)
    covered, wider = 0, 0
    for _ in range(300):
        level = rng.exponential(size=60)
        gaps = np.repeat(level, 40)
        order = np.argsort(gaps, kind="stable")
        found = intervals.clustered(gaps[order], np.repeat(np.arange(60), 40)[order], 0.5)
        naive = intervals.order_statistic(np.sort(gaps), 0.5)
        assert None not in (found.low, found.high, naive.low, naive.high)
        covered += found.low <= np.log(2) <= found.high  # type: ignore[operator]
        wider += found.high - found.low > naive.high - naive.low  # type: ignore[operator]
    assert covered >= 0.92 * 300
    assert wider >= 0.99 * 300


def test_two_hundred_thousand_gaps_are_all_counted(tmp_path: Path) -> None:
    """2,000 replies of 100 chunks each: 99 gaps a reply."""
    rng = np.random.default_rng(3)
    records = [reply(lane=lane, chunks_ms=np.cumsum(rng.integers(1, 40, 100)).tolist()) for lane in range(2000)]
    load = only(tmp_path, records)
    assert load.itl_ms is not None
    assert load.itl_ms["p99"].n == 2000 * 99


def test_the_token_rate_is_the_one_that_speedups_compare(tmp_path: Path) -> None:
    """Lanes that end far apart: tokens while both were busy, over that time, as gates.speed has it."""
    from gates import reading, speed

    records = [reply(chunks_ms=(100, 200)), reply(lane=1, sent_ms=50, chunks_ms=range(60, 500, 20))]
    load = only(tmp_path, [dataclasses.replace(record, id=f"{record.lane:032x}") for record in records])
    run = Run.open(tmp_path / "run")
    arm = reading.load(run, run).stock
    of_pass = speed.rate(arm.passes[0])
    assert load.output_tokens_per_s is not None
    assert of_pass is not None
    assert load.output_tokens_per_s.value == pytest.approx(of_pass.tokens_per_s)
