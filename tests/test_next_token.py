"""A reference that tells log-probabilities of what it samples alone: scored a place at a time, at random places."""

import functools
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from gates import report
from gates.finding import Verdict
from loadgen import next_token, virtual
from loadgen.cli import scoring, simulated
from loadgen.cli.progress import Progress
from loadgen.cli.session import World
from loadgen.compare import Load
from loadgen.dialects import llamacpp, openai, sglang, vllm
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint
from loadgen.memory import MemoryTransport
from loadgen.profile import load, overridden
from loadgen.record import Record, Run
from loadgen.score import CannotScore, check_reference
from loadgen.telemetry import Clock
from loadgen.transport import SocketTransport
from playback import answer, playing
from servers.sim.app import app
from servers.sim.settings import Settings

# Which places.


def reply(number: int, phase: Any = "timed") -> Record:
    return Record(
        id=f"{number:016x}" + "0" * 16,
        endpoint="a",
        profile="solo",
        pass_no=0,
        lane=0,
        phase=phase,
        prompt_id="p",
        asked={},
        probe="greedy" if phase == "probe" else None,
    )


def test_a_place_is_drawn_before_its_token() -> None:
    """Whether a place is asked about rests on nothing that comes at it or after: not on where the reply ends."""
    for number in range(50):
        longest = list(next_token.drawn(reply(number), 300))
        for length in (0, 1, 7, 120):
            assert list(next_token.drawn(reply(number), length)) == [place for place in longest if place < length]


def test_every_place_is_as_likely() -> None:
    """Shares of 4,000 replies at the first, a middle and the last place: binomial, and independent between places."""
    asked = np.zeros((4000, 40))
    for number in range(len(asked)):
        asked[number, list(next_token.drawn(reply(number * 7919 + 1), 40))] = 1
    se = math.sqrt(next_token.SHARE * (1 - next_token.SHARE) / len(asked))
    assert np.abs(asked.mean(axis=0) - next_token.SHARE).max() < 4 * se
    neighbours = np.corrcoef(asked[:, :-1].ravel(), asked[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 4 / math.sqrt(asked[:, 1:].size)


def test_so_many_of_each_reply_would_choose_by_what_was_drawn() -> None:
    """The residual of the end of a reply, hazard .1: at random places its mean is 0; at one place of each reply it is
    far above, as short replies count more."""
    rng = np.random.default_rng(1)
    random, one_each = [], []
    for number in range(3000):
        length = int(rng.geometric(0.1))
        ends = np.zeros(length)
        ends[-1] = 1
        random += (ends[list(next_token.drawn(reply(number * 104_729 + 5), length))] - 0.1).tolist()
        one_each.append(ends[rng.integers(length)] - 0.1)
    assert abs(np.mean(random)) < 4 * np.std(random) / math.sqrt(len(random))
    assert np.mean(one_each) > 10 * np.std(one_each) / math.sqrt(len(one_each))


def test_probes_are_scored_from_the_first_place_on() -> None:
    """Their checks read place after place, so far as there are scores."""
    assert list(next_token.drawn(reply(3, "probe"), 5)) == [0, 1, 2, 3, 4]
    assert list(next_token.drawn(reply(3, "probe"), 500)) == list(range(next_token.FIRST))


def test_replies_with_log_probabilities_are_scored_further() -> None:
    """Six of them must make eight runs of 16 tokens; of those that ran beside them nothing is read."""
    beside = replace(reply(3, "probe"), probe="logprobs")
    assert list(next_token.drawn(replace(beside, asked={"logprobs": 20}), 500)) == list(range(next_token.REPORTED))
    assert list(next_token.drawn(beside, 500)) == []
    assert 6 * (next_token.REPORTED // 16) >= 8


# How it is asked, and what comes back.

LISTED = {f"token_id:{token_id}": -3.0 for token_id in range(20)}


def test_vllm_is_asked_for_one_token() -> None:
    """Ids for names; what stands behind the 20 likeliest is the sampled token, which does not matter."""
    body = vllm.next_body([1, 2], "m")
    assert body is not None
    assert (body["prompt"], body["max_tokens"], body["logprobs"], body["stream"]) == ([1, 2], 1, 20, False)
    top = LISTED | {"token_id:99": -9999.0}
    told = {"tokens": ["token_id:99"], "token_logprobs": [-9.0], "top_logprobs": [top]}
    listed = vllm.read_next({"choices": [{"logprobs": told}]})
    assert listed == [*((token_id, -3.0) for token_id in range(20)), (99, -math.inf)]


def test_llamacpp_is_asked_for_one_token() -> None:
    """Before its samplers, and by its own method."""
    body = llamacpp.next_body([1, 2], "m")
    assert body is not None
    assert (body["prompt"], body["n_predict"], body["n_probs"]) == ([1, 2], 1, 20)
    assert body["post_sampling_probs"] is False
    top = [{"id": 6, "token": "b", "logprob": -0.1}, {"id": 9, "token": "c", "logprob": -2.5}]
    entry = {"id": 6, "token": "b", "logprob": -0.1, "top_logprobs": top}
    assert llamacpp.read_next({"completion_probabilities": [entry]}) == [(6, -0.1), (9, -2.5)]


@pytest.mark.parametrize("dialect", [openai, sglang], ids=["openai", "sglang"])
def test_others_are_not(dialect: Any) -> None:
    """By their texts two tokens can be one; and who scores prompts needs no such thing."""
    assert dialect.next_body([1], "m") is None
    with pytest.raises(ValueError, match=r"ids|whole"):
        dialect.read_next({})


MODELS = answer(200, orjson.dumps({"data": [{"id": "tide-1", "owned_by": "vllm", "max_model_len": 64}]}))
NO_VERSION, REFUSED = answer(404, b"{}"), answer(400, b'{"error": {"message": "no prompt_logprobs here"}}')


async def checked(content: dict[str, Any]) -> bool:
    """Whether a server that refuses prompts' log-probabilities scores place by place. Raises CannotScore."""
    transport = SocketTransport()
    async with playing(MODELS, NO_VERSION, REFUSED, answer(200, orjson.dumps(content))) as server:
        reference = await open_endpoint(Endpoint(url=server.url, label="reference"), transport)
        try:
            return (await check_reference(reference)).by_next_token
        finally:
            await reference.close()


def told(top: Any) -> dict[str, Any]:
    return {"choices": [{"logprobs": {"tokens": ["x"], "token_logprobs": [-1.0], "top_logprobs": [top]}}]}


async def test_a_server_without_prompts_scores_place_by_place() -> None:
    assert await checked(told(LISTED))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"choices": [{"logprobs": None}]}, "no alternatives"),
        (told({"a": -1.0}), "no alternatives"),
        (told({"token_id:1": -1.0}), "1 alternatives a position, where 20"),
        (told(LISTED | {"token_id:3": 2.0}), "more than 1"),
        (told(LISTED | {"token_id:3": "hello"}), "no alternatives"),
        ({}, "no alternatives"),
    ],
    ids=["null", "texts for ids", "too few", "above 1", "words", "nothing"],
)
async def test_what_is_no_law_scores_nothing(content: dict[str, Any], says: str) -> None:
    """One sentence that has both answers."""
    with pytest.raises(CannotScore, match=f"no prompt_logprobs here.*{says}"):
        await checked(content)


# Whole comparisons.

HIDDEN = Settings(seed=1, prompt_logprobs=False)


def judged(out: Path, stock: Settings, requests: int = 120, **candidate: Any) -> tuple[Run, Verdict]:
    profile = overridden(load("team"), {"requests": requests})
    profile = profile.model_copy(update={"prompts": profile.prompts.model_copy(update={"max_words": 40})})
    engines = {"stock": stock, "candidate": Settings(seed=2, speculative=4, **candidate)}
    simulated.compare(engines, Load((profile,), 2, seed=3), out)
    run = Run.open(out)
    verdict = report.judged([run], "strict", ["repeat_prefix"]).verdict
    assert verdict is not None
    return run, verdict


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Verdict]:
    return judged(tmp_path_factory.mktemp("places") / "run", HIDDEN)


def world_of(settings: Settings, clock: Clock) -> World:
    api = app(settings, clock)

    def way(endpoint: Endpoint) -> MemoryTransport:
        return MemoryTransport(api, clock)

    return World(clock=clock, timed=way, side=way, throttled=False)


def scored_anew(path: Path, world: Callable[[Clock], World]) -> Run:
    """The run scored by another server, its scores away."""
    shutil.rmtree(path / "scores")

    async def main(clock: Clock) -> None:
        endpoint = Endpoint(url="http://127.0.0.1:1", label="stock")
        await scoring.score_run(path, endpoint, world(clock), Progress(quiet=True))

    virtual.run(main)
    return Run.open(path)


def rows(run: Run) -> dict[tuple[str, int], np.ndarray[Any, Any]]:
    return {
        (label, pass_no): np.sort(found, order=["request", "position"]) for label, _, pass_no, found in run.scores()
    }


def test_places_have_the_scores_that_the_prompt_would_have(hidden: tuple[Run, Verdict], tmp_path: Path) -> None:
    """The same run scored by the same model with prompt log-probabilities: equal at every place asked about, which are
    a quarter, ends of replies among them; and `score` gives what `compare` gave."""
    run, _ = hidden
    for name, settings in (("whole", Settings(seed=1)), ("again", HIDDEN)):
        shutil.copytree(run.path, tmp_path / name)
        other = scored_anew(tmp_path / name, functools.partial(world_of, settings))
        assert other.scored_share == (1.0 if name == "whole" else next_token.SHARE)
        for key, part in rows(run).items():
            asked = part["ids"][:, 0] >= 0
            full = rows(other)[key]
            sd = math.sqrt(next_token.SHARE * (1 - next_token.SHARE) / len(part))
            assert abs(asked.mean() - next_token.SHARE) < 4 * sd
            assert (full["token_id"] == part["token_id"]).all()
            assert (full["ids"][asked] == part["ids"][asked]).all()
            assert full["logprobs"][asked] == pytest.approx(part["logprobs"][asked])
            # Of a token that is not listed, each knows the figure only where it happened to sample it itself.
            known = asked & ~np.isnan(part["logprob"]) & ~np.isnan(full["logprob"])
            assert full["logprob"][known] == pytest.approx(part["logprob"][known])


def test_every_check_of_tokens_has_data(hidden: tuple[Run, Verdict]) -> None:
    """And says how much of the tokens it is, but not that the rest is missing."""
    run, verdict = hidden
    found = {one.check: one for one in verdict.findings if one.profile is None}
    assert verdict.outcome == "undecided"  # 2,400 tokens are too few
    assert {found[name].missing for name in ("likelihood", "first_choice", "tail", "junk", "pit", "eos")} == {None}
    estimate = found["likelihood"].estimate
    total = sum(len(part) for (label, _), part in rows(run).items() if label == "candidate")
    assert estimate is not None and estimate.n == pytest.approx(next_token.SHARE * total, rel=0.1)
    assert "candidate: the reference was asked about a random 25% of the tokens." in verdict.warnings
    assert not any("not judged by all" in warning for warning in verdict.warnings)


def test_a_fault_shows_at_random_places(tmp_path: Path) -> None:
    """min_p .05, which the verdict finds after some 3,000 tokens."""
    _, verdict = judged(tmp_path / "run", HIDDEN, requests=300, fault="min-p-0.05")
    assert (verdict.outcome, verdict.diagnosis) == ("different", "looks like truncation, min_p ≈ 0.05")


def refusing(settings: Settings, clock: Clock, share: float) -> World:
    """A reference that answers 500 to this share of its requests for one token, whatever they ask about."""
    api, rng = app(settings, clock), np.random.default_rng(7)

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        single = b'"max_tokens":1,' in message["body"] and b'"logprobs"' in message["body"]
        if single and b"[1,2]" not in message["body"] and rng.random() < share:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b'{"error": "busy"}'})
            return
        given = [message]

        async def again() -> Any:
            return given.pop() if given else await receive()

        await api(scope, again, send)

    def way(endpoint: Endpoint) -> MemoryTransport:
        return MemoryTransport(busy, clock)

    return World(clock=clock, timed=way, side=way, throttled=False)


def test_a_place_that_is_refused_is_left_out_alone(hidden: tuple[Run, Verdict], tmp_path: Path) -> None:
    """Of a reference that refuses a fifth of the places, four fifths of each reply's are kept, of long replies as of
    short ones: whole replies left out would be the long ones. The verdict says that places are missing."""
    shutil.copytree(hidden[0].path, tmp_path / "run")
    run = scored_anew(tmp_path / "run", lambda clock: refusing(HIDDEN, clock, 0.2))
    lengths = {int(record.id[:16], 16): len(record.token_ids or ()) for record in run.records()}
    kept, before = (np.concatenate(list(rows(one).values())) for one in (run, hidden[0]))
    of_long = [
        int((part["ids"][:, 0] >= 0)[[lengths[int(key)] > 40 for key in part["request"]]].sum())
        for part in (kept, before)
    ]
    assert of_long[0] == pytest.approx(0.8 * of_long[1], abs=4 * math.sqrt(0.16 * of_long[1]))
    warnings = report.judged([run], "strict", ["repeat_prefix"]).verdict
    assert warnings is not None
    assert any("candidate: the reference told of" in warning for warning in warnings.warnings)
