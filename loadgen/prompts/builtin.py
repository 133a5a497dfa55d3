"""An unbounded seeded source of varied prompts: questions, code, stories, lists, letters. Asked with sampling, so that
replies differ in kind and length as real traffic does."""

import functools
import random
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from loadgen.prompts import Prompt, SourceSettings, Tokenize
from loadgen.seeds import derived

KINDS = ("question", "code", "story", "list", "letter")
_PLACEHOLDER = re.compile(r"\{([a-z]+)(\d?)\}")
_ARTICLE = re.compile(r"\b([Aa])(?= [aeiou])")


class Settings(SourceSettings):
    source: Literal["builtin"] = "builtin"
    max_words: int = Field(
        default=120, ge=40, le=1_000_000
    )  # of a prompt; lengths spread evenly from about 10 up to it


def prompts(settings: Settings, seed: int, pass_key: str, count: int, tokenize: Tokenize | None) -> list[Prompt]:
    """Both forms: text ends with a cue that a model without a chat template can go on from; messages hold none.

    Each prompt draws some 80 bits of details from a seed of its own, several of them in its first words: neither a
    whole prompt nor a long prefix comes twice.
    """
    return [_prompt(settings, _rng(seed, pass_key, index)) for index in range(count)]


def _rng(seed: int, pass_key: str, index: int) -> random.Random:
    return random.Random(derived(seed, "prompts", pass_key, index))


def _prompt(settings: Settings, rng: random.Random) -> Prompt:
    blocks = _blocks()[_one(rng, KINDS)]
    body = _body(blocks, rng, words=10 + int(rng.random() * (settings.max_words - 9)))
    return Prompt(text=f"{body}\n\n{_one(rng, blocks['cue'])}", messages=[{"role": "user", "content": body}])


def _body(blocks: Any, rng: random.Random, words: int) -> str:
    """An opening, then details in random order for as long as they fit."""
    drawn: dict[str, str] = {}
    sentences = [_filled(_one(rng, blocks["opening"]), rng, drawn)]
    length = len(sentences[0].split())
    for detail in sorted(blocks["detail"], key=lambda _: rng.random()):
        sentence = _filled(detail, rng, drawn)
        if length + len(sentence.split()) <= words:
            sentences.append(sentence)
            length += len(sentence.split())
    return " ".join(sentences)


def _filled(template: str, rng: random.Random, drawn: dict[str, str]) -> str:
    """What was drawn for a placeholder stays the same throughout a prompt; a second one of its kind differs."""

    def value(match: re.Match[str]) -> str:
        if match[0] not in drawn:
            drawn[match[0]] = _drawn(match[1], rng, taken=set(drawn.values()))
        return drawn[match[0]]

    return _ARTICLE.sub(r"\1n", _PLACEHOLDER.sub(value, template))


def _drawn(kind: str, rng: random.Random, taken: set[str]) -> str:
    match kind:
        case "number":
            return str(11 + int(rng.random() * 979))
        case "count":
            return str(3 + int(rng.random() * 14))
        case "year":
            return str(1802 + int(rng.random() * 217))
        case "code":
            letters = "".join(_one(rng, "BCDFGHJKLMNPQRSTVWXZ") for _ in range(2))
            return f"{letters}-{1000 + int(rng.random() * 9000)}"
    words: list[str] = _blocks()["words"][kind]
    return _one(rng, [word for word in words if word not in taken])


def _one(rng: random.Random, choices: Sequence[str]) -> str:
    """As rng.choice, whose draws differ between versions of Python; random() promises not to."""
    return choices[int(rng.random() * len(choices))]


@functools.cache
def _blocks() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("blocks.toml").read_text(encoding="utf-8"))
