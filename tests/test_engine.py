"""A real vLLM on the CPU, with a tiny Qwen3-architecture model: load, scoring and verdicts on the engine itself.

What to expect was measured first (README, "A real bug that only such a gate sees"); the figures in here are bounds on
verdicts, never on times.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import StartVllm
from gates import plan
from loadgen import cli, next_token, prompts
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint
from loadgen.probe import token_ids
from loadgen.prompts import builtin
from loadgen.record import SCORED_TOP_K, Record, Run
from loadgen.score import prompt_scores
from loadgen.transport import SocketTransport
from servers import launch

pytestmark = pytest.mark.engine

WIDE = """
about = "sixteen lanes of brief prompts: as many tokens as possible"
lanes = 16
requests = {requests}
max_tokens = 256
[prompts]
source = "builtin"
max_words = 40
[sampling]
temperature = {temperature}
[warmup]
requests = 16
"""


def wide(folder: Path, requests: int, temperature: float = 1.0) -> str:
    path = folder / "wide.toml"
    path.write_text(WIDE.format(requests=requests, temperature=temperature))
    return str(path)


def compare(stock: str, candidate: str, profile: str, out: Path, *more: str) -> dict[str, Any]:
    """The verdict that `loadgate compare` wrote."""
    cli._run(["compare", stock, candidate, "--profile", profile, "--out", str(out), *more])
    verdict: dict[str, Any] = json.loads((out / "verdict.json").read_bytes())
    return verdict


def without(*checks: str) -> list[str]:
    return [option for check in checks for option in ("--without", check)]


TOKENS_ALONE = without("repeat_prefix", "agreement", "fidelity", "honesty", "greedy")
"""No probes, which cost a minute, where the tokens of the timed passes decide."""


def finding(verdict: dict[str, Any], check: str) -> dict[str, Any]:
    found: dict[str, Any] = next(f for f in verdict["findings"] if f["check"] == check and f["profile"] is None)
    return found


def timed(out: Path, endpoint: str | None = None) -> list[Record]:
    return [r for r in Run.open(out).records() if r.phase == "timed" and endpoint in (None, r.endpoint)]


def test_solo_and_eight_lanes_are_driven(vllm_server: launch.Server, tmp_path: Path) -> None:
    """Every reply has ids, as many as the server's own usage says, a finish, and one stamp a chunk, in order."""
    out = tmp_path / "run"
    profiles = ["--profile", "solo", "--profile", "team", "--requests", "16", "--max-tokens", "96"]
    code = cli._run(["run", vllm_server.url, *profiles, "--out", str(out)])
    replies = timed(out)

    assert code == 0
    assert len(replies) == 32
    for reply in replies:
        assert (reply.failure, reply.flags) == (None, [])
        assert reply.usage is not None
        assert len(reply.token_ids or []) == reply.usage.completion_tokens == sum(n or 0 for n in reply.chunk_tokens)
        assert reply.finish_reason in ("stop", "length")
        assert reply.chunk_ns == sorted(reply.chunk_ns)


GREEDY = """
lanes = 1
requests = 6
max_tokens = 48
endpoint = "{endpoint}"
[prompts]
source = "builtin"
max_words = 60
[sampling]
temperature = 0.0
request_seeds = true
[warmup]
requests = 1
"""


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_stream_is_read_as_the_same_request_without_one(
    vllm_server: launch.Server, tmp_path: Path, endpoint: str
) -> None:
    """Greedy, with the same seeds: one text, the same ids of prompt and reply, the same counts, the same end."""
    profile = tmp_path / "greedy.toml"
    profile.write_text(GREEDY.format(endpoint=endpoint))
    cli._run(["run", vllm_server.url, "--profile", str(profile), "--seed", "7", "--out", str(tmp_path / "run")])
    records = timed(tmp_path / "run")
    path = "chat/completions" if endpoint == "chat" else "completions"
    made = prompts.make(builtin.Settings(max_words=60), 7, "greedy-0", len(records))
    asked_again = {f"greedy-0-{index}": prompt for index, prompt in enumerate(made)}

    assert len(records) == 6
    for record in records:
        prompt = asked_again[record.prompt_id]
        said = {"messages": prompt.messages} if endpoint == "chat" else {"prompt": prompt.text}
        body = {"model": "tiny", "return_token_ids": True, **record.asked, **said}
        answer = httpx.post(f"{vllm_server.url}/v1/{path}", json=body, timeout=60).json()
        choice, usage = answer["choices"][0], answer["usage"]
        text = choice["message"]["content"] if endpoint == "chat" else choice["text"]
        prompt_ids = answer["prompt_token_ids"] if endpoint == "chat" else choice["prompt_token_ids"]

        assert (record.failure, record.flags) == (None, [])
        assert (record.text, record.token_ids) == (text, choice["token_ids"])
        assert record.prompt_token_ids == prompt_ids
        assert record.finish_reason == choice["finish_reason"]
        assert record.usage is not None
        assert record.usage.prompt_tokens == usage["prompt_tokens"]
        assert record.usage.completion_tokens == usage["completion_tokens"]
        assert record.asked["seed"] > 0


async def test_places_are_scored_as_prompts_are(vllm_server: launch.Server) -> None:
    """The law of the next token, told with a token that the engine samples there, is the one that it gives of a prompt
    up to the last bits: the cells of a fixed text fall alike, and none differs by more than .03 nat."""
    transport = SocketTransport()
    reference = await open_endpoint(Endpoint(url=vllm_server.url, label="stock"), transport)
    try:
        ids = await token_ids(reference, "A gate that nobody can check is a door that somebody painted on a wall.")
        whole = await prompt_scores(reference, ids)
        told = [await next_token.scored(reference, ids[:place], ids[place]) for place in range(1, len(ids))]
    finally:
        await reference.close()
    assert not isinstance(whole, str) and len(ids) > 8
    for of_prompt, of_place in zip(whole[1:], told, strict=True):
        assert of_prompt is not None and not isinstance(of_place, str)
        known, there = dict(of_prompt.top), dict(of_place.top)
        both = known.keys() & there.keys()
        assert len(both) >= SCORED_TOP_K - 2  # the last ones may be tied, and one more may be the token itself
        assert max(abs(known[token_id] - there[token_id]) for token_id in both) < 0.03


def rejecting(verdict: dict[str, Any]) -> set[str]:
    return {f["check"] for f in verdict["findings"] if f["outcome"] == "different"}


def test_stock_against_itself_is_equivalent(vllm_server: launch.Server, tmp_path: Path) -> None:
    """Temperature 1, 60,000 scored tokens or more: EQUIVALENT by plan strict, of which no check lacks data but memory.

    So this engine takes every probe, and is as sure of itself as its reference: log-probabilities on fixed texts are
    the same to the last digit, and greedy replies hold no token that is clearly not the likeliest.
    """
    out = tmp_path / "run"
    verdict = compare(vllm_server.url, vllm_server.url, wide(tmp_path, 520), out, "--passes", "3")
    scored = sum(len(rows) for label, name, _, rows in Run.open(out).scores() if (label, name) == ("candidate", "wide"))

    assert scored >= 60_000
    assert {f["check"] for f in verdict["findings"] if f["required"]} == set(plan.load("strict").required)
    assert {f["check"] for f in verdict["findings"] if f["missing"] is not None} <= {"memory"}
    assert verdict["outcome"] == "equivalent"
    assert verdict["diagnosis"] is None
    assert all(record.failure is None for record in Run.open(out).records())
    texts = finding(verdict, "fidelity")
    assert (texts["stratum"], texts["outcome"]) == ("fixed texts", "equivalent")
    assert texts["estimate"]["value"] < 1e-4
    assert finding(verdict, "greedy")["outcome"] == "passed"


def test_temperature_is_found(vllm_server: launch.Server, tmp_path: Path) -> None:
    """The same server with temperature 0.95 in the candidate's body is DIFFERENT by likelihood, and named.

    Half of such comparisons see it in 22,500 tokens; of 0.98, see benchmarks/engine_temperature.py.
    """
    out = tmp_path / "run"
    options = ["--candidate-extra-body", '{"temperature": 0.95}', "--passes", "3", *TOKENS_ALONE]
    verdict = compare(vllm_server.url, vllm_server.url, wide(tmp_path, 520), out, *options)

    assert verdict["outcome"] == "different"
    assert finding(verdict, "likelihood")["outcome"] == "different"
    assert finding(verdict, "likelihood")["estimate"]["value"] > 0
    assert verdict["diagnosis"] is not None
    assert "temperature" in verdict["diagnosis"]


def test_a_noisy_copy_is_found(
    vllm_server: launch.Server, start_vllm: StartVllm, tiny_model: Path, tmp_path: Path
) -> None:
    """Weights that are off by KL .03 a token, with 9,000 tokens scored: DIFFERENT by what is drawn again and again, by
    what the server itself says of a text, and by its greedy replies."""
    with start_vllm("vllm", model=tiny_model / "kl-0.03") as candidate:
        verdict = compare(vllm_server.url, candidate.url, wide(tmp_path, 200), tmp_path / "run", "--passes", "1")

    assert verdict["outcome"] == "different"
    assert {"repeat_prefix", "fidelity", "greedy"} <= rejecting(verdict)


def test_a_copy_with_less_noise_is_found_by_repeated_draws(
    vllm_server: launch.Server, start_vllm: StartVllm, tiny_model: Path, tmp_path: Path
) -> None:
    """KL .01 a token, which residuals would need a million tokens for, shows in 7,680 draws at chosen prefixes."""
    options = ["--passes", "1", *without("agreement", "fidelity", "honesty", "greedy")]
    with start_vllm("vllm", model=tiny_model / "kl-0.01") as candidate:
        verdict = compare(vllm_server.url, candidate.url, wide(tmp_path, 200), tmp_path / "run", *options)

    assert rejecting(verdict) == {"repeat_prefix"}
    assert finding(verdict, "repeat_prefix")["estimate"]["low"] > 0
    assert verdict["outcome"] == "different"


def test_nothing_is_found_against_greedy_ngram_speculation(
    vllm_server: launch.Server, start_vllm: StartVllm, tmp_path: Path
) -> None:
    """At temperature 0 vLLM's n-gram speculation is right: no finding against it, stock's own text, and it drafts."""
    out = tmp_path / "run"
    with start_vllm("vllm-ngram") as candidate:
        verdict = compare(vllm_server.url, candidate.url, wide(tmp_path, 64, temperature=0.0), out, "--passes", "1")

    assert rejecting(verdict) == set()
    assert finding(verdict, "greedy")["outcome"] == "passed"
    assert all(reply.failure is None for reply in timed(out))
    texts = [{reply.prompt_id: reply.text for reply in timed(out, side)} for side in ("stock", "candidate")]
    same = sum(texts[0][prompt] == texts[1][prompt] for prompt in texts[0])
    assert same >= 0.95 * len(texts[0])  # 450 of 450 when first measured; another batch may round a near-tie otherwise
    assert verdict["acceptance"]["wide"] > 1


def test_broken_draft_model_speculation_is_found(
    vllm_server: launch.Server, start_vllm: StartVllm, tmp_path: Path
) -> None:
    """At temperature 1 this release's draft_model speculation samples wrongly on the CPU (public issue vllm#55005):
    text, failures and acceptance look normal, and the verdict is DIFFERENT, as of arbitrary tokens or too hot."""
    out = tmp_path / "run"
    with start_vllm("vllm-draft") as candidate:
        options = ["--passes", "1", *TOKENS_ALONE]
        verdict = compare(vllm_server.url, candidate.url, wide(tmp_path, 200), out, *options)

    assert verdict["outcome"] == "different"
    assert {"likelihood", "first_choice"} <= rejecting(verdict)
    assert verdict["diagnosis"] is not None
    assert any(family in verdict["diagnosis"] for family in ("arbitrary tokens", "temperature"))
    assert finding(verdict, "likelihood")["estimate"]["high"] < 0
    assert all(reply.failure is None for reply in timed(out, "candidate"))
    assert 1 < verdict["acceptance"]["wide"] <= 5
