"""Schedules: who sends what and when, fixed before the clock starts."""

import itertools
import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.profile import Arrivals, Profile, validated
from loadgen.prompts import Prompt, PromptsError
from loadgen.request import Request
from loadgen.schedule import arrivals, by_lane, schedule


def shape(**changes: Any) -> Profile:
    return validated({"name": "x", "lanes": 2, "requests": 50, "max_tokens": 16, **changes}, where="x.toml")


def made(profile: Profile, count: int, lanes: int | None, **changes: Any) -> list[Request]:
    asked: dict[str, Any] = {"pass_key": "x-0", "seed": 5, "endpoint": "stock"} | changes
    return schedule(profile, prompts=[Prompt(text=f"p{i}") for i in range(count)], lanes=lanes, **asked)


@given(st.integers(1, 12), st.integers(0, 60))
@settings(deadline=None)
def test_a_lane_gets_every_lth_prompt(lanes: int, count: int) -> None:
    """Lane i of L sends the prompts i, i + L, i + 2L, …; none is lost or sent twice."""
    sent = by_lane(made(shape(), count, lanes))
    expected = {lane: [f"p{i}" for i in range(lane, count, lanes)] for lane in range(min(lanes, count))}
    assert expected == {lane: [request.prompt.text for request in requests] for lane, requests in sent.items()}


def test_lanes_start_apart_and_go_on_when_free() -> None:
    """First requests are due 1 ms after each other; a later one has no due time but its lane's."""
    assert [request.due_s for request in made(shape(), 5, 3)] == [0.0, 0.001, 0.002, None, None]


def test_a_burst_and_a_wide_start_on_request() -> None:
    """The spread of the starts is the profile's."""
    assert [request.due_s for request in made(shape(start_spread_ms=0), 2, 2)] == [0.0, 0.0]
    assert [request.due_s for request in made(shape(start_spread_ms=250), 2, 2)] == [0.0, 0.25]


def test_prompts_are_named_by_pass_and_index() -> None:
    """The same prompt has the same id on both endpoints."""
    assert [request.prompt_id for request in made(shape(), 2, 2, pass_key="x-3")] == ["x-3-0", "x-3-1"]


@given(st.floats(0.01, 1000), st.integers(0, 300))
@settings(deadline=None)
def test_constant_arrivals_do_not_drift(rate: float, count: int) -> None:
    """Due times are absolute: the i-th at i / rate, however long the pass."""
    due = arrivals(Arrivals(kind="constant", rate_per_s=rate), count, 1)
    assert [i / rate for i in range(count)] == due


@given(st.floats(0.01, 1000), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_poisson_arrivals_only_rise(rate: float, seed: int) -> None:
    """Finite, positive, in order, and the same for the same seed."""
    due = arrivals(Arrivals(kind="poisson", rate_per_s=rate), 100, seed)
    assert all(math.isfinite(each) and each >= 0 for each in due)
    assert sorted(due) == due
    assert due == arrivals(Arrivals(kind="poisson", rate_per_s=rate), 100, seed)


def test_poisson_gaps_are_exponential() -> None:
    """20,000 gaps at 4 a second: mean 1/4, deviation 1/4, and e^-1 of them above the mean, each within 5 sigma."""
    due = arrivals(Arrivals(kind="poisson", rate_per_s=4), 20_000, 1)
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *due])]
    above = sum(gap > 0.25 for gap in gaps) / 20_000
    assert abs(statistics.mean(gaps) - 0.25) < 5 * 0.25 / math.sqrt(20_000)
    assert abs(statistics.stdev(gaps) - 0.25) < 5 * 0.25 * math.sqrt(2 / 20_000)
    assert abs(above - math.exp(-1)) < 5 * math.sqrt(0.368 * 0.632 / 20_000)


def open_loop(kind: str = "poisson") -> Profile:
    return shape(lanes=None, arrivals={"kind": kind, "rate_per_s": 4})


def test_every_arrival_is_a_client_of_its_own() -> None:
    """Open loop: the lane is the request's index, and every request has a due time."""
    requests = made(open_loop(), 20, None)
    assert list(range(20)) == [request.lane for request in requests]
    assert None not in [request.due_s for request in requests]


def test_endpoints_share_arrivals_and_passes_do_not() -> None:
    """A pass's load is the same on both endpoints; the next pass draws anew."""
    stock, candidate, later = (
        [request.due_s for request in made(open_loop(), 20, None, **changes)]
        for changes in ({}, {"endpoint": "candidate"}, {"pass_key": "x-1"})
    )
    assert stock == candidate
    assert stock != later


def test_no_seed_is_sent_unless_asked() -> None:
    """A seed would make some engines leave their ordinary path."""
    assert "seed" not in made(shape(), 1, 1)[0].asked


def test_request_seeds_differ_by_request_and_endpoint() -> None:
    """One seed for both endpoints would make their replies the same for the wrong reason."""
    profile = shape(sampling={"request_seeds": True})
    seeds = [
        request.asked["seed"]
        for changes in ({}, {"endpoint": "candidate"}, {"pass_key": "x-1"}, {"seed": 6})
        for request in made(profile, 50, 2, **changes)
    ]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds[:50] == [request.asked["seed"] for request in made(profile, 50, 2)]


def test_a_prompts_own_max_tokens_wins() -> None:
    """A line of a file may bound its own reply."""
    [request] = schedule(shape(), "x-0", [Prompt(text="p", max_tokens=3)], 1, 5, "stock")
    assert request.asked["max_tokens"] == 3


IDS = Prompt(token_ids=[1, 2])
CHAT = Prompt(messages=[{"role": "user", "content": "hi"}])
BOTH = Prompt(text="hi\n\nAnswer:", messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("endpoint", "prompt", "expected"),
    [
        ("completions", IDS, IDS),
        ("completions", BOTH, Prompt(text="hi\n\nAnswer:")),
        ("chat", BOTH, CHAT),
        ("chat", CHAT, CHAT),
        ("chat", Prompt(text="hi"), CHAT),  # a text alone is one user's turn
    ],
)
def test_a_prompt_takes_its_endpoints_form(endpoint: str, prompt: Prompt, expected: Prompt) -> None:
    """A request holds one form of its prompt: the one that will be sent."""
    [request] = schedule(shape(endpoint=endpoint), "x-0", [prompt], 1, 5, "stock")
    assert expected == request.prompt
    assert endpoint == request.kind


@pytest.mark.parametrize(("endpoint", "prompt"), [("completions", CHAT), ("chat", IDS)])
def test_a_prompt_that_does_not_fit_is_refused(endpoint: str, prompt: Prompt) -> None:
    """Before the start, with the endpoint that would take it."""
    with pytest.raises(PromptsError, match=f'endpoint = "{endpoint}" does not take. Set endpoint ='):
        schedule(shape(endpoint=endpoint), "x-0", [prompt], 1, 5, "stock")
