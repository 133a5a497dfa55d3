"""A tiny Qwen3 model with a tokenizer and noisy copies of it, made in seconds: real engines without a download.

Runs inside the engine's environment (torch and transformers come with vLLM) and imports nothing of this project:

    $LOADGATE_VLLM_PYTHON servers/tiny.py OUT_DIR [--seed 0] [--noise 0.1] [--kl 0.03 --kl 0.01]

writes OUT_DIR/target and OUT_DIR/draft, and for each --kl an OUT_DIR/kl-0.03: the target with a small frozen error, as
quantization makes it, of that many nat a token. The same seed gives the same files (the tokenizer is trained on the
running Python's standard library, so another Python release gives another vocabulary).
"""

import argparse
import ast
import json
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

VOCABULARY = 1024
EOS, EOS_ID = "<|endoftext|>", 0
# Logits of sd 9 give a mean entropy near 0.8 nat and a mean top probability near .73, as of a real model's replies.
HEAD_SCALE = 9.0
REPLY_TOKENS = 40.0
CORPUS_BYTES = 2_000_000
KL_TOKENS = 64  # of each reply by which the size of an error is measured
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def corpus() -> list[str]:
    """Sources of the standard library's top-level modules, in order of name, up to CORPUS_BYTES."""
    texts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(path.read_text(encoding="utf-8"))
        size += len(texts[-1])
        if size > CORPUS_BYTES:
            break
    return texts


def tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of VOCABULARY entries: any text round-trips, and id 0 is EOS."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=EOS,
        pad_token=EOS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def target(seed: int) -> Qwen3ForCausalLM:
    """0.66 million weights, normal with sd 1/√fan_in; the embeddings' sd is 1, the head is HEAD_SCALE times larger."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=EOS_ID,
    )
    model = Qwen3ForCausalLM(config).eval()
    draw = torch.Generator().manual_seed(seed)
    for name, weight in matrices(model):
        sd = 1.0 if "embed" in name else weight.shape[1] ** -0.5
        weight.normal_(std=sd, generator=draw)
    model.lm_head.weight.data *= HEAD_SCALE
    return to_grid(model)


def matrices(model: Qwen3ForCausalLM) -> list[tuple[str, torch.Tensor]]:
    """All weights but the norms', by name, in the model's order."""
    return [(name, weight.data) for name, weight in model.named_parameters() if weight.dim() == 2]


def to_grid(model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    """The model as it will be saved: what is measured here is then what the engine loads."""
    return model.to(torch.bfloat16).to(torch.float32)


@torch.inference_mode()
def eos_free_replies(
    model: Qwen3ForCausalLM, prompts: torch.Tensor, tokens: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replies at temperature 1 in which EOS is never drawn.

    prompts: (replies, prompt tokens). Returns (EOS's logit, log-sum-exp of all other logits), each (replies, tokens).
    """
    draw = torch.Generator().manual_seed(seed)
    inputs, cache, eos, others = prompts, None, [], []
    for _ in range(tokens):
        step = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        logits, cache = step.logits[:, -1].float(), step.past_key_values
        eos.append(logits[:, EOS_ID].clone())
        logits[:, EOS_ID] = -torch.inf
        others.append(logits.logsumexp(-1))
        inputs = torch.multinomial(logits.softmax(-1), 1, generator=draw)
    return torch.stack(eos, 1), torch.stack(others, 1)


def mean_reply(scale: float, eos: torch.Tensor, others: torch.Tensor) -> float:
    """Mean reply length (EOS counted, cut at the tokens looked at) if EOS's row of the head were `scale` times as long.

    A reply without EOS follows the model's law given that it did not end, so its survival Π(1 − P(EOS)) is exact for
    every scale: one set of replies serves the whole search.
    """
    survival = (others - torch.logaddexp(scale * eos, others)).cumsum(1).exp()
    return float(1 + survival[:, :-1].sum(1).mean())


def scale_eos(model: Qwen3ForCausalLM, prompts: torch.Tensor, seed: int) -> float:
    """Scale EOS's row so that a reply means REPLY_TOKENS; returns the mean expected with the scale chosen."""
    eos, others = eos_free_replies(model, prompts, tokens=320, seed=seed)
    low, high = 0.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_reply(middle, eos, others) > REPLY_TOKENS else (low, middle)
    model.lm_head.weight.data[EOS_ID] *= high
    return mean_reply(high, eos, others)


def noisy(model: Qwen3ForCausalLM, noise: float, seed: int) -> Qwen3ForCausalLM:
    """A copy with normal noise of `noise` times each matrix's own sd: near the target, and never equal to it."""
    copy = Qwen3ForCausalLM(model.config).eval()
    copy.load_state_dict(model.state_dict())
    draw = torch.Generator().manual_seed(seed)
    for _, weight in matrices(copy):
        weight.add_(torch.randn(weight.shape, generator=draw), alpha=noise * float(weight.std()))
    return to_grid(copy)


@torch.inference_mode()
def replies(model: Qwen3ForCausalLM, prompts: torch.Tensor, tokens: int, seed: int) -> torch.Tensor:
    """(replies, prompt tokens + tokens) ids at temperature 1; a reply goes on after EOS, which `alive` leaves out."""
    draw = torch.Generator().manual_seed(seed)
    inputs, cache, ids = prompts, None, [prompts]
    for _ in range(tokens):
        step = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        inputs, cache = torch.multinomial(step.logits[:, -1].softmax(-1), 1, generator=draw), step.past_key_values
        ids.append(inputs)
    return torch.cat(ids, 1)


def alive(ids: torch.Tensor, start: int) -> torch.Tensor:
    """(replies, tokens) whether the reply had not ended before the token. start: of the reply in ids."""
    before = ids[:, start:-1] != EOS_ID
    return torch.cat([torch.ones(len(ids), 1, dtype=torch.bool), before.cumprod(1).bool()], 1)


@torch.inference_mode()
def laws(model: Qwen3ForCausalLM, ids: torch.Tensor, start: int) -> torch.Tensor:
    """(tokens, VOCABULARY) log-probabilities before every token of the replies from `start` on, up to EOS."""
    return model(input_ids=ids).logits[:, start - 1 : -1][alive(ids, start)].log_softmax(-1)


def off_by(model: Qwen3ForCausalLM, kl: float, prompts: torch.Tensor, seed: int) -> tuple[Qwen3ForCausalLM, float]:
    """A noisy copy of that mean KL(model ‖ copy), nat a token of the model's own replies, and the KL measured.

    KL grows with the square of a small noise. The noise is rounded, so that a sum taken in another order on another
    machine gives the same copy.
    """
    ids, start = replies(model, prompts, KL_TOKENS, seed), prompts.shape[1]
    own, noise, measured = laws(model, ids, start), 0.02, 0.0
    for _ in range(3):
        copy = noisy(model, noise, seed)
        measured = float((own.exp() * (own - laws(copy, ids, start))).sum(-1).mean())
        if abs(measured / kl - 1) < 0.03:
            break
        noise = round(noise * (kl / measured) ** 0.5, 4)
    return copy, measured


def prompt_ids(tokens: PreTrainedTokenizerFast, texts: list[str], replies: int = 128, length: int = 64) -> torch.Tensor:
    """(replies, length) ids: pieces of the sources' docstrings, at even distances. Prose, as prompts are: replies to
    code would end sooner."""
    prose = "\n".join(ast.get_docstring(ast.parse(text)) or "" for text in texts)
    ids = tokens(prose)["input_ids"]
    starts = torch.linspace(0, len(ids) - length, replies).long()
    return torch.tensor(ids).unfold(0, length, 1)[starts]


def save(model: Qwen3ForCausalLM, tokens: PreTrainedTokenizerFast, folder: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    tokens.save_pretrained(folder)


def make(out: Path, seed: int, noise: float, kls: Sequence[float]) -> dict[str, float]:
    """Write out/target, out/draft and for each of kls an out/kl-0.03; returns what was measured."""
    disable_progress_bar()
    # Sums are then taken in one order on any machine; and threads that wait for each other stand still on a busy one.
    torch.set_num_threads(1)
    texts = corpus()
    tokens = tokenizer(texts)
    model = target(seed)
    prompts = prompt_ids(tokens, texts)
    reply_tokens = scale_eos(model, prompts, seed + 1)
    model = to_grid(model)
    save(noisy(model, noise, seed + 2), tokens, out / "draft")
    measured = {}
    for kl in kls:
        copy, found = off_by(model, kl, prompts, seed + 3)
        save(copy, tokens, out / f"kl-{kl:g}")
        measured[f"kl-{kl:g}"] = round(found, 5)
    save(model, tokens, out / "target")
    weights = sum(w.numel() for w in model.parameters())
    return {"reply_tokens": round(reply_tokens, 2), "weights": weights, **measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder: target/ and draft/ are written into it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--noise", type=float, default=0.1, help="the draft's noise, in sds of each matrix (default 0.1)"
    )
    parser.add_argument(
        "--kl", type=float, action="append", default=[], help="also a copy off by this, nat a token (may be repeated)"
    )
    asked = parser.parse_args()
    print(json.dumps(make(asked.out, asked.seed, asked.noise, asked.kl)))  # noqa: T201


if __name__ == "__main__":
    main()
