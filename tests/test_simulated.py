"""Whole comparisons on embedded engines under the virtual clock: the verdict, from prompts to report."""

from pathlib import Path
from typing import Any

import pytest

from gates import report
from gates.finding import Verdict
from loadgen.cli import simulated
from loadgen.compare import Load
from loadgen.profile import Profile, load, overridden
from loadgen.record import Run
from servers.sim.settings import Settings


def brief(name: str, **changes: Any) -> Profile:
    profile = overridden(load(name), changes)
    return profile.model_copy(update={"prompts": profile.prompts.model_copy(update={"max_words": 40})})


def compared(
    out: Path, *profiles: Profile, passes: int = 2, body: dict[str, Any] | None = None, **candidate: Any
) -> tuple[Run, Verdict]:
    engines = {
        "stock": Settings(seed=1, kv_cache_tokens=4096),
        "candidate": Settings(seed=2, kv_cache_tokens=4096, **candidate),
    }
    simulated.compare(engines, Load(profiles, passes, seed=3), out, {"extra_body": body or {}})
    run = Run.open(out)
    verdict = report.judged([run], "strict").verdict
    assert verdict is not None
    return run, verdict


@pytest.fixture(scope="module")
def three_profiles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Verdict]:
    """A lossless speculative engine against stock, alone, for a team, and with the KV cache nearly full."""
    out = tmp_path_factory.mktemp("simulated") / "run"
    return compared(
        out, brief("solo", requests=6), brief("team", requests=32), brief("busy", requests_per_lane=3), speculative=4
    )


def test_lossless_speculation_is_not_called_different(three_profiles: tuple[Run, Verdict]) -> None:
    """A lossless candidate's verdict is never DIFFERENT, and it is faster in every profile."""
    _, verdict = three_profiles

    assert verdict.outcome != "different"
    assert {name: speed.ratio > 1.3 for name, speed in verdict.speed.items()} == {
        "solo": True,
        "team": True,
        "busy": True,
    }


def test_passes_alternate(three_profiles: tuple[Run, Verdict]) -> None:
    """Stock leads in even passes and follows in odd ones, profile by profile."""
    run, _ = three_profiles
    order = list(dict.fromkeys((r.pass_no, r.profile, r.endpoint) for r in run.records() if r.phase == "timed"))

    assert order == [
        (pass_no, profile, endpoint)
        for pass_no, endpoints in ((0, ("stock", "candidate")), (1, ("candidate", "stock")))
        for profile in ("solo", "team", "busy")
        for endpoint in endpoints
    ]


def test_prompts_are_shared_by_endpoints_and_by_nothing_else(three_profiles: tuple[Run, Verdict]) -> None:
    """One prompt_id is the same tokens on both endpoints, and no two prompt_ids share theirs."""
    run, _ = three_profiles
    seen: dict[str, dict[str, tuple[int, ...]]] = {"stock": {}, "candidate": {}}
    for record in run.records():
        if record.phase == "timed":
            seen[record.endpoint][record.prompt_id] = tuple(record.prompt_token_ids or ())

    assert seen["candidate"] == seen["stock"]
    assert len(set(seen["stock"].values())) == len(seen["stock"])


def test_busy_fills_the_cache_with_one_number_of_lanes(three_profiles: tuple[Run, Verdict]) -> None:
    """busy's lanes are found once, on stock, replayed on the candidate, and nearly fill stock's KV cache."""
    run, _ = three_profiles
    telemetry = list(run.telemetry())
    found = [line.values["lanes"] for line in telemetry if line.kind == "calibration"]
    lanes = {(r.endpoint, r.pass_no): 0 for r in run.records() if r.phase == "timed" and r.profile == "busy"}
    for key in lanes:
        lanes[key] = len(
            {
                r.lane
                for r in run.records()
                if r.phase == "timed" and r.profile == "busy" and (r.endpoint, r.pass_no) == key
            }
        )
    usage = [
        line.values["kv_usage"]
        for line in telemetry
        if line.kind == "sample" and (line.endpoint, line.profile) == ("stock", "busy")
    ]

    assert len(found) == 1
    assert set(lanes.values()) == {found[0]}
    assert 0.75 < max(usage) <= 1.0


def test_every_token_received_is_scored(three_profiles: tuple[Run, Verdict]) -> None:
    """A pass has one score for every token id that its replies hold."""
    run, _ = three_profiles
    received: dict[tuple[str, str, int], int] = {}
    for r in run.records():
        if r.phase == "timed":
            key = (r.endpoint, r.profile, r.pass_no)
            received[key] = received.get(key, 0) + len(r.token_ids or ())

    assert {(label, profile, no): len(rows) for label, profile, no, rows in run.scores()} == received


def test_acceptance_agrees_with_tokens_a_chunk(three_profiles: tuple[Run, Verdict]) -> None:
    """Tokens a verify step by the server's counters are near the mean token ids a chunk of a lone lane."""
    run, verdict = three_profiles
    # The first token comes from the prefill, and an end of reply cuts its chunk short: neither is a full step.
    chunks = [
        count
        for r in run.records()
        if (r.endpoint, r.profile, r.phase) == ("candidate", "solo", "timed")
        for count in r.chunk_tokens[1:-1]
    ]

    assert verdict.acceptance["solo"] == pytest.approx(sum(filter(None, chunks)) / len(chunks), rel=0.12)


def test_temperature_is_found(tmp_path: Path) -> None:
    """A candidate at temperature 0.9 is DIFFERENT by likelihood."""
    _, verdict = compared(tmp_path / "run", brief("team", requests=96), passes=3, body={"temperature": 0.9})

    assert verdict.outcome == "different"
    assert {f.check for f in verdict.findings if f.outcome == "different"} >= {"likelihood"}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("usage", "its usage counts other tokens than the ids that came"),
        ("bundled", "Steps come bundled"),
    ],
)
def test_answers_that_mislead_are_said(tmp_path: Path, fault: str, says: str) -> None:
    """Tokens counted that never came, steps held back: the tokens are the model's, and a warning tells."""
    for name, planted in (("faulty", fault), ("honest", None)):
        _, verdict = compared(tmp_path / name, brief("team", requests=16), passes=1, speculative=4, fault=planted)

        assert any(says in warning for warning in verdict.warnings) == (planted is not None)
        assert verdict.outcome != "different"


@pytest.mark.parametrize(
    ("fault", "check"), [("dropped", "failures"), ("top-p-0.95", "tail"), ("dishonest", "likelihood")]
)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str, check: str) -> None:
    """In one comparison of 20,000 tokens, by the check that was made for it."""
    _, verdict = compared(tmp_path / "run", brief("team", requests=250), speculative=4, fault=fault)

    assert verdict.outcome == "different"
    assert check in {finding.check for finding in verdict.findings if finding.outcome == "different"}


def test_unverified_drafts_are_found_by_the_draft_as_oracle(tmp_path: Path) -> None:
    """One draft in ten taken as it is: named, and measured, by a server of the draft's own tables."""
    engines = {
        "stock": Settings(seed=1, kv_cache_tokens=4096),
        "candidate": Settings(seed=2, kv_cache_tokens=4096, speculative=4, fault="unverified-0.10"),
        "draft": Settings(serves="draft", kv_cache_tokens=4096),
    }
    simulated.compare(engines, Load((brief("team", requests=90),), 2, seed=3), tmp_path / "run")
    verdict = report.judged([Run.open(tmp_path / "run")], "strict").verdict
    assert verdict is not None
    found = next(one for one in verdict.findings if one.check == "oracle")

    assert (verdict.outcome, found.outcome) == ("different", "different")
    assert verdict.diagnosis == "looks like 10 % of tokens drawn by the model draft without verification"
    assert found.estimate is not None and 0.04 < found.estimate.value < 0.14
