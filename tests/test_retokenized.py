"""Servers that return text alone: both servers' text is tokenized again, and judged by the difference alone."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from scipy.stats import binom

from arms import LOSSLESS, Law, P, compared
from factories import heated
from gates import checks, report
from gates.checks import Levels, Terms
from gates.evidence import Arm, Evidence
from gates.finding import Finding, Verdict
from gates.scored import Scored
from loadgen import retokenized, virtual
from loadgen.cli import scoring, simulated
from loadgen.cli.progress import Progress
from loadgen.cli.session import World
from loadgen.compare import Load
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint
from loadgen.memory import MemoryTransport
from loadgen.profile import load, overridden
from loadgen.record import Failure, Record, Run, Usage
from loadgen.reply import Clock
from loadgen.score import ScoredPass
from loadgen.transport import SocketTransport
from playback import Script, answer, playing
from servers.sim import tokenizer
from servers.sim.app import app
from servers.sim.settings import Settings

TEXT = "the sea and the sun"
IDS = tokenizer.encode(TEXT)
KEY = ("candidate", "team", 0)


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "id": "a" * 32,
        "endpoint": "candidate",
        "profile": "team",
        "pass_no": 0,
        "lane": 0,
        "phase": "timed",
        "prompt_id": "p",
        "asked": {},
        "text": TEXT,
        "finish_reason": "length",
        "usage": Usage(completion_tokens=len(IDS)),
    }
    return Record(**fields | changes)


STOCK = record(
    id="b" * 32, endpoint="stock", prompt_token_ids=[5, 6, 7], token_ids=[9] * len(IDS), flags=["token_ids_incomplete"]
)


def scored(*candidates: Record, stock: Record = STOCK) -> dict[retokenized.Key, ScoredPass]:
    """By an embedded engine."""

    async def main(clock: Clock) -> dict[retokenized.Key, ScoredPass]:
        way = MemoryTransport(app(Settings(rows=64, seed=0), clock), clock)
        reference = await open_endpoint(Endpoint(url="http://127.0.0.1:1", label="reference"), way, way)
        try:
            return await retokenized.score(reference, {KEY: list(candidates), ("stock", "team", 0): [stock]}, None)
        finally:
            await reference.close()

    return virtual.run(main)


def test_both_servers_go_through_their_text() -> None:
    """The prompt is stock's, the tokens are the reference tokenizer's, whatever ids stock returned with its text."""
    found = scored(record())
    assert {key: one.scores["token_id"].tolist() for key, one in found.items()} == {
        KEY: IDS,
        ("stock", "team", 0): IDS,
    }
    assert np.isfinite(found[KEY].scores["logprob"]).all()
    assert found[KEY].scores["request"].tolist() == [int("a" * 16, 16)] * len(IDS)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"usage": Usage(completion_tokens=len(IDS) + 1)}, retokenized.OTHER_COUNT),
        ({"usage": Usage(completion_tokens=len(IDS) + 2), "finish_reason": "stop"}, retokenized.OTHER_COUNT),
        ({"finish_reason": None, "failure": Failure(kind="timeout", detail="")}, retokenized.CUT_OFF),
        ({"text": ""}, retokenized.CUT_OFF),
        ({"reasoning": "hm"}, retokenized.NOT_TEXT_ALONE),
        ({"prompt_id": "of the candidate alone"}, retokenized.NO_PROMPT),
    ],
)
def test_what_may_not_be_the_tokens_drawn_is_left_out(changes: dict[str, Any], why: str) -> None:
    """And counted by its reason; the other reply is kept."""
    found = scored(record(), record(id="c" * 32, **changes))[KEY]
    assert (found.left_out, len(found.scores)) == ({why: 1}, len(IDS))


def test_the_end_of_a_reply_may_be_counted_and_has_no_text() -> None:
    """finish_reason stop: the server counts one token more than the text holds, or as many."""
    for more in (0, 1):
        told = record(finish_reason="stop", usage=Usage(completion_tokens=len(IDS) + more))
        assert scored(told)[KEY].left_out == {}


def test_counts_are_compared_on_both_servers_or_on_none() -> None:
    """Where one server counts no tokens, the other's count leaves no reply out either: both lose by one rule."""
    odd = dataclasses.replace(STOCK, usage=Usage(completion_tokens=99))
    assert scored(record(), stock=odd)["stock", "team", 0].left_out == {retokenized.OTHER_COUNT: 1}
    assert scored(record(usage=None), stock=odd)["stock", "team", 0].left_out == {}


def test_nothing_is_done_where_both_return_ids() -> None:
    """A round in which no server returned text alone has no scores by text."""
    assert scored(record(token_ids=IDS, prompt_token_ids=[5, 6, 7])) == {}


MODELS = answer(200, orjson.dumps({"data": [{"id": "tide-1", "owned_by": "vllm", "max_model_len": 64}]}))


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        ([answer(200, b'{"tokens": [1, 2]}'), answer(200, b'{"prompt": "the sea"}')], retokenized.NOT_BACK),
        ([answer(404, b"{}")], retokenized.NO_TOKENIZER),
        ([answer(200, b'{"tokens": ["a"]}')], retokenized.NO_TOKENIZER),
        ([answer(200, b'{"tokens": [1, 2]}'), answer(404, b"{}")], retokenized.NO_TOKENIZER),
    ],
    ids=["another text comes back", "no /tokenize", "no ids", "no /detokenize"],
)
async def test_a_tokenizer_that_does_not_lead_back(pages: list[Script], why: str) -> None:
    """What the reference's tokenizer does not give back is not scored; a reference without one scores no text."""
    transport = SocketTransport()
    async with playing(MODELS, answer(404, b"{}"), *pages) as server:
        reference = await open_endpoint(Endpoint(url=server.url, label="reference"), transport)
        found = await retokenized.score(reference, {KEY: [record(prompt_token_ids=[5])]}, None)
        await reference.close()
    assert (found[KEY].left_out, len(found[KEY].scores)) == ({why: 1}, 0)


# Judged by the difference alone.

LEVELS = Levels(reject=0.05, gap=0.05, outside=0.05)
TERMS = Terms(
    required=True, pooled=LEVELS, profile=LEVELS, p_value=0.05, equivalent=0.95, replies=100, profile_replies=30
)


def by_text(found: Evidence) -> Evidence:
    """As if re-tokenized, with a selection by what was drawn: replies of the likeliest first tokens only."""
    arms = {name: _selected(getattr(found, name)) for name in ("stock", "candidate")}
    return dataclasses.replace(found, by_text=frozenset({"solo"}), **arms)


def _selected(arm: Arm) -> Arm:
    [one] = arm.passes
    rows, reply = one.scored.rows, one.scored.reply
    kept = np.isin(reply, reply[(rows["position"] < 3) & (rows["token_id"] == 0)])
    return dataclasses.replace(arm, passes=[dataclasses.replace(one, scored=Scored(rows[kept], reply[kept], {}))])


def pooled(name: str, found: Evidence) -> Finding:
    module = checks.load(name)
    return module.check(found, module.Settings(), TERMS).findings[0]


def test_a_lossless_candidate_is_seldom_different_by_text() -> None:
    """Of 30 comparisons at level .05, each check no more often than the binomial allows, though the selection moves
    both servers off zero."""
    asked = ("likelihood", "first_choice", "tail", "junk")
    different = dict.fromkeys(asked, 0)
    for seed in range(30):
        found = by_text(compared(LOSSLESS, replies=130, seed=seed))
        for name in asked:
            different[name] += pooled(name, found).outcome == "different"
    assert max(different.values()) <= binom.ppf(0.999, 30, 0.05)


def test_the_difference_is_what_is_estimated() -> None:
    """Mean of the candidate's residuals minus stock's, on equal numbers of tokens."""
    found = by_text(compared(Law(heated(P, 0.8)), replies=300))
    one = pooled("likelihood", found)
    parts = []
    for arm in (found.candidate, found.stock):
        rows = arm.passes[0].scored.rows
        parts.append(rows)
    n = min(len(part) for part in parts)
    means = []
    for rows in parts:
        logp, listed = rows["logprobs"][:n].astype(float), np.exp(rows["logprobs"][:n].astype(float))
        last = logp.min(axis=1)
        drawn = np.maximum(rows["logprob"][:n].astype(float), last)
        means.append(float((drawn - (listed * logp).sum(axis=1) - (1 - listed.sum(axis=1)) * last).mean()))
    assert one.estimate is not None and one.outcome == "different"
    assert one.estimate.value == pytest.approx(means[0] - means[1], abs=1e-4)
    assert "by the text of both servers" in one.says


def test_enough_lossless_text_is_equivalent_and_a_fault_at_the_margin_is_not() -> None:
    """At 1,000 replies: inside ±.05 on temperature where there is no fault, and not at T = 1/1.05."""
    module = checks.load("likelihood")
    settings = module.Settings.model_validate({"margin_temperature": 0.05})
    lossless, faulty = (
        module.check(by_text(compared(law, replies=1000)), settings, TERMS).findings[0]
        for law in (LOSSLESS, Law(heated(P, 1 / 1.05)))
    )
    assert (lossless.outcome, faulty.outcome == "equivalent") == ("equivalent", False)


@pytest.mark.parametrize("name", ["pit", "eos", "independence"])
def test_what_needs_the_tokens_drawn_says_so(name: str) -> None:
    """Undecided, with the reason."""
    found = pooled(name, by_text(compared(LOSSLESS, replies=130)))
    assert found.outcome == "undecided" and "text alone" in (found.missing or "")


# Whole comparisons.


def judged(out: Path, body: dict[str, Any] | None) -> tuple[Run, Verdict]:
    profile = overridden(load("team"), {"requests": 96})
    profile = profile.model_copy(update={"prompts": profile.prompts.model_copy(update={"max_words": 40})})
    engines = {"stock": Settings(seed=1), "candidate": Settings(seed=2, speculative=4)}
    simulated.compare(engines, Load((profile,), 2, seed=3), out, {"extra_body": body or {}, "dialect": "openai"})
    run = Run.open(out)
    verdict = report.judged([run], "strict").verdict
    assert verdict is not None
    return run, verdict


@pytest.fixture(scope="module")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Verdict]:
    return judged(tmp_path_factory.mktemp("text") / "run", None)


def test_a_lossless_candidate_of_text_alone_has_data_and_is_not_different(lossless: tuple[Run, Verdict]) -> None:
    """Its verdict says what was lost; nothing is diagnosed, as no e-process runs."""
    _, verdict = lossless
    found = {one.check: one for one in verdict.findings if one.profile is None}
    assert verdict.outcome != "different" and verdict.diagnosis is None
    assert [found[name].missing for name in ("likelihood", "first_choice", "tail", "junk")] == [None] * 4
    assert found["likelihood"].estimate is not None and found["likelihood"].estimate.n > 5000
    assert any("returned text alone in team" in warning for warning in verdict.warnings)


def test_scoring_afterwards_gives_the_same_scores(lossless: tuple[Run, Verdict], tmp_path: Path) -> None:
    """`loadgate score` on the run without its scores by text."""
    run, _ = lossless
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    shutil.rmtree(copy / "scores" / "text")

    async def main(clock: Clock) -> None:
        api = app(Settings(seed=1), clock)
        world = World(
            clock=clock,
            timed=lambda endpoint: MemoryTransport(api, clock),
            side=lambda endpoint: MemoryTransport(api, clock),
            throttled=False,
        )
        await scoring.score_run(copy, Endpoint(url="http://127.0.0.1:1", label="stock"), world, Progress(quiet=True))

    virtual.run(main)
    expected, actual = (
        {
            (label, pass_no): np.sort(rows, order=["request", "position"]).tobytes()
            for label, _, pass_no, rows in one.scores(by_text=True)
        }
        for one in (run, Run.open(copy))
    )
    assert actual == expected and len(expected) == 4


def test_another_temperature_shows_in_text_alone(tmp_path: Path) -> None:
    """A candidate at temperature .8."""
    _, verdict = judged(tmp_path / "run", {"temperature": 0.8})
    assert verdict.outcome == "different"
    assert "likelihood" in {finding.check for finding in verdict.findings if finding.outcome == "different"}
