"""The tiny model that real engines are tested with: the same for a seed, and ending its replies as models do."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import make_tiny
from loadgen.prompts import builtin
from servers import launch

pytestmark = pytest.mark.engine


def post(url: str, **body: object) -> dict[str, Any]:
    asked = urllib.request.Request(url, json.dumps({"model": "tiny", **body}).encode())
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked, timeout=120) as answer:
        read: dict[str, Any] = json.load(answer)
    return read


def test_one_seed_one_model(tiny_model: Path, tmp_path: Path) -> None:
    """Weights and tokenizer are the same to the byte, so results on two machines can be laid side by side."""
    printed = json.loads(make_tiny(tmp_path))
    assert printed["reply_tokens"] == pytest.approx(40, abs=0.1)
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        for part in ("target", "draft"):
            assert (tiny_model / part / file).read_bytes() == (tmp_path / part / file).read_bytes()


def test_draft_is_near_and_not_equal(tiny_model: Path) -> None:
    """Same shapes, same tokenizer, other weights."""
    target, draft = tiny_model / "target", tiny_model / "draft"
    assert (target / "config.json").read_bytes() == (draft / "config.json").read_bytes()
    assert (target / "tokenizer.json").read_bytes() == (draft / "tokenizer.json").read_bytes()
    assert (target / "model.safetensors").read_bytes() != (draft / "model.safetensors").read_bytes()


def test_replies_mean_about_forty_tokens(vllm_server: launch.Server) -> None:
    """On the builtin prompts too, which the search for EOS's scale has not seen: sd of the mean about 3.5."""
    prompts = [prompt.text for prompt in builtin.prompts(builtin.Settings(), 0, "tiny", 200, None)]

    def reply_to(prompt: str | None) -> dict[str, Any]:
        asked = {"prompt": prompt, "temperature": 1.0, "max_tokens": 1000, "return_token_ids": True}
        reply: dict[str, Any] = post(f"{vllm_server.url}/v1/completions", **asked)["choices"][0]
        return reply

    with ThreadPoolExecutor(8) as lanes:
        replies = list(lanes.map(reply_to, prompts))
    assert {reply["finish_reason"] for reply in replies} == {"stop"}
    assert {reply["token_ids"][-1] for reply in replies} == {0}
    assert 27 < sum(len(reply["token_ids"]) for reply in replies) / len(replies) < 54


def test_chat_uses_the_template(vllm_server: launch.Server) -> None:
    """A chat's messages become the text that the template makes of them."""
    url = f"{vllm_server.url}/tokenize"
    plain = post(url, prompt="user: Hello\nassistant:")["tokens"]
    assert post(url, messages=[{"role": "user", "content": "Hello"}])["tokens"] == plain
