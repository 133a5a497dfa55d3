"""The tiny model that real engines are tested with: the same for a seed, and ending its replies as models do."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import OFF_BY, make_tiny, with_torch
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
    printed = json.loads(make_tiny(tmp_path, *OFF_BY))
    assert printed["reply_tokens"] == pytest.approx(40, abs=0.1)
    assert printed["kl-0.03"] == pytest.approx(0.03, rel=0.03)
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        for part in ("target", "draft", "kl-0.03", "kl-0.01"):
            assert (tiny_model / part / file).read_bytes() == (tmp_path / part / file).read_bytes()


def test_draft_is_near_and_not_equal(tiny_model: Path) -> None:
    """Same shapes, same tokenizer, other weights."""
    target, draft = tiny_model / "target", tiny_model / "draft"
    assert (target / "config.json").read_bytes() == (draft / "config.json").read_bytes()
    assert (target / "tokenizer.json").read_bytes() == (draft / "tokenizer.json").read_bytes()
    assert (target / "model.safetensors").read_bytes() != (draft / "model.safetensors").read_bytes()


KL = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.manual_seed(1234)
torch.set_num_threads(1)
target, *copies = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in sys.argv[1:]]
words = AutoTokenizer.from_pretrained(sys.argv[1])("Once upon a time there lived a miller by the river.")["input_ids"]
ids = target.generate(torch.tensor([words] * 128), do_sample=True, max_new_tokens=48, top_k=0)
with torch.inference_mode():
    p, *others = [model(ids).logits[:, len(words) - 1 : -1].log_softmax(-1) for model in (target, *copies)]
    ended = (ids[:, len(words) : -1] == 0).cumsum(1) > 0
    counted = torch.cat([torch.ones(len(ids), 1), (~ended).float()], 1)
    print(*[float(((p.exp() * (p - q)).sum(-1) * counted).sum() / counted.sum()) for q in others])
"""


def test_a_noisy_copy_is_off_by_what_was_asked_for(tiny_model: Path) -> None:
    """Measured afresh: other prompts and draws, the files as an engine loads them, each reply to its end."""
    folders = [str(tiny_model / part) for part in ("target", "kl-0.03", "kl-0.01")]
    found = [float(one) for one in with_torch("-c", KL, *folders).split()]
    assert found == [pytest.approx(0.03, rel=0.2), pytest.approx(0.01, rel=0.2)]


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
