"""What counts as scores: the reference's answers about the very tokens that it was sent, and nothing else."""

import math
from typing import Any

import orjson
import pytest

from loadgen import side
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint
from loadgen.record import Record
from loadgen.score import CannotScore, check_reference, score_pass
from loadgen.transport import SocketTransport
from playback import answer, playing

MODELS = answer(200, orjson.dumps({"data": [{"id": "tide-1", "owned_by": "vllm", "max_model_len": 64}]}))
NO_VERSION = answer(404, b"{}")
IDS = [1, 2, 3]
LISTED = {str(token_id): {"logprob": -3.0} for token_id in range(1, 21)}


def scores(position: Any = LISTED, ids: Any = IDS, null: int = 1, alone: bool = False) -> dict[str, Any]:
    positions = [None] * null + [position] * (len(IDS) - null)
    if alone:
        positions[null:] = [{str(token_id): {"logprob": math.log(0.5)}} for token_id in IDS[null:]]
    return {"choices": [{"text": "", "prompt_logprobs": positions, "prompt_token_ids": ids}]}


def listed(**changes: Any) -> dict[str, Any]:
    return LISTED | {name: {"logprob": value} for name, value in changes.items()}


async def checked(content: dict[str, Any]) -> None:
    """Raises CannotScore for what is no score."""
    transport = SocketTransport()
    async with playing(MODELS, NO_VERSION, answer(200, orjson.dumps(content))) as server:
        reference = await open_endpoint(Endpoint(url=server.url, label="reference"), transport)
        try:
            await check_reference(reference)
        finally:
            await reference.close()


@pytest.mark.parametrize(
    "position",
    [LISTED, listed(**{"2": None}), listed(**{"2": "-inf"}), listed(**{"2": -9999.0})],
    ids=["numbers", "null for −inf", "-inf in words", "−9999 for −inf"],
)
async def test_scores_of_the_tokens_sent_are_taken(position: dict[str, Any]) -> None:
    """Natural logarithms, −inf in any of the forms that engines give it."""
    await checked(scores(position))


NONE = [
    ("another tokenizer's ids", scores(ids=[4, 5, 6]), "scores of other tokens"),
    ("ids as texts", scores(ids=["1", "2", "3"]), "scores of other tokens"),
    ("one position too few", {"choices": [{"prompt_logprobs": [None, LISTED], "prompt_token_ids": IDS}]}, "no prompt"),
    ("null at every position", scores(null=3), "null for every position"),
    ("probabilities above 1", scores({name: {"logprob": 5.0} for name in LISTED}), "more than 1"),
    ("numbers beyond all bounds", scores({name: {"logprob": 1e300} for name in LISTED}), "more than 1"),
    ("words", scores({name: {"logprob": "hello"} for name in LISTED}), "no prompt log-probabilities"),
    ("token ids beyond 31 bits", scores(listed(**{str(1 << 40): -9.0})), "of no token ids"),
    ("entries that are keyed by text", scores(listed(a=-9.0)), "no prompt log-probabilities"),
    ("the token alone, without alternatives", scores(alone=True), "1 alternatives a position, where 20 were asked"),
]


@pytest.mark.parametrize(("content", "says"), [row[1:] for row in NONE], ids=[row[0] for row in NONE])
async def test_what_is_no_score_is_said_before_anything_is_driven(content: dict[str, Any], says: str) -> None:
    """One sentence with what came back; such scores would judge other tokens, or by the token drawn."""
    with pytest.raises(CannotScore, match=says):
        await checked(content)


async def test_a_reply_with_missing_ids_is_not_scored() -> None:
    """What follows a gap would be scored as if the gap were not there; the reply is left out, and the reason said."""
    place = {
        "endpoint": "a",
        "profile": "solo",
        "pass_no": 0,
        "lane": 0,
        "phase": "timed",
        "prompt_id": "p",
        "asked": {},
    }
    gap = Record(id="0" * 32, prompt_token_ids=[1], token_ids=[2], flags=["token_ids_incomplete"], **place)
    transport = SocketTransport()
    async with playing(MODELS, NO_VERSION) as server:
        reference = await open_endpoint(Endpoint(url=server.url, label="reference"), transport)
        found = await score_pass(reference, [gap], None)
        await reference.close()

    assert (len(found.scores), found.left_out, len(server.requests)) == (0, {"token ids incomplete": 1}, 2)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_reference_is_asked_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once refused for being busy, it would else score a whole run in the poorer of two ways."""
    monkeypatch.setattr(side, "_PAUSES_S", (0.0, 0.0))
    busy, told = answer(status, b"{}"), answer(200, orjson.dumps(scores()))
    transport = SocketTransport()
    async with playing(MODELS, NO_VERSION, busy, busy, told) as server:
        reference = await open_endpoint(Endpoint(url=server.url, label="reference"), transport)
        checked_one = await check_reference(reference)
        await reference.close()

    assert (checked_one.by_next_token, len(server.requests)) == (False, 5)
