"""Prompts of exact token counts: as token ids, or as text that the server's own /tokenize has counted."""

import functools
import random
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from loadgen.prompts import Prompt, PromptsError, SourceSettings, Tokenize, builtin
from loadgen.seeds import derived

Id = Annotated[int, Field(ge=0, lt=1 << 31)]

_FILLERS = (" a", " I", ".", "!", ",", " 7", " x", "\n", " the", "?")
_TRIES = 8
_WORDS_A_TOKEN = 16  # no tokenizer makes fewer tokens of English than this
_SHORTEST_TEXT = 16  # tokens: room for the reference number that makes each text differ


class Settings(SourceSettings):
    source: Literal["synthetic"] = "synthetic"
    input_tokens: int = Field(ge=1, le=10_000_000)  # special tokens included, a chat template's not
    spread: int = Field(default=0, ge=0, le=10_000_000)  # lengths are even over input_tokens ± spread
    form: Literal["ids", "text"] = "ids"
    ids: tuple[Id, Id] | None = Field(default=None, strict=False)  # [first, last] to draw from; None: ids of real text

    @model_validator(mode="after")
    def _can_differ(self) -> Self:
        shortest = self.input_tokens - self.spread
        if shortest < 1:
            raise ValueError(
                f"spread = {self.spread} would make prompts of {shortest} tokens; it must stay below input_tokens"
            )
        if self.ids is None and shortest < _SHORTEST_TEXT:
            raise ValueError(
                f"texts of {shortest} tokens are too short to differ from each other: "
                f"give at least {_SHORTEST_TEXT} tokens, or ids = [first, last] to draw from"
            )
        if self.ids is not None and self.form == "text":
            raise ValueError(
                'ids are drawn for form = "ids" only; form = "text" takes its words from the builtin source'
            )
        if self.ids is not None and max(0, self.ids[1] - self.ids[0] + 1) ** shortest < 2**48:
            raise ValueError(
                f"ids = {list(self.ids)} give too few different prompts of {shortest} tokens: "
                "two passes would share some. Widen the range or raise input_tokens"
            )
        return self


def prompts(settings: Settings, seed: int, pass_key: str, count: int, tokenize: Tokenize | None) -> list[Prompt]:
    """Raises PromptsError where a tokenizer is needed and there is none, or no text of that length is found."""
    if settings.ids is None and tokenize is None:
        raise PromptsError(
            "Synthetic prompts of exact length need the server's own tokenizer, and this server offers no /tokenize. "
            "Give ids = [first, last] in [prompts], the range of token ids to draw from."
        )
    return [_prompt(settings, seed, pass_key, index, tokenize) for index in range(count)]


def _prompt(settings: Settings, seed: int, pass_key: str, index: int, tokenize: Tokenize | None) -> Prompt:
    rng = random.Random(derived(seed, "synthetic", pass_key, index))
    length = settings.input_tokens + int(rng.random() * (2 * settings.spread + 1)) - settings.spread
    if settings.ids is not None:
        low, high = settings.ids
        return Prompt(token_ids=[low + int(rng.random() * (high - low + 1)) for _ in range(length)])
    assert tokenize is not None
    passages = _passages(seed, f"{pass_key}-synthetic-{index}", most_words=_WORDS_A_TOKEN * length)
    if settings.form == "ids":
        return Prompt(token_ids=_cut(passages, length, tokenize))
    return Prompt(text=exact_text(passages, length, tokenize))


def _passages(seed: int, key: str, most_words: int) -> Callable[[int, int], str]:
    """(attempt, words) → that many words: a reference number of 48 bits, then builtin prompts in a row. Every attempt
    begins anew. Raises PromptsError beyond most_words: a tokenizer that wants more of them counts nothing."""

    def passage(attempt: int, words: int) -> str:
        if words > most_words:
            raise PromptsError(
                f"The server's /tokenize finds hardly a token in {words:,} words of English: it is broken."
            )
        found: list[str] = []
        count = 0
        while len(found) < words:
            count = max(4, 2 * count)
            made = builtin.prompts(builtin.Settings(), seed, f"{key}-{attempt}", count, None)
            number = derived(seed, "reference", key, attempt, bits=48)
            texts = [prompt.messages[0]["content"] for prompt in made if prompt.messages]
            found = " ".join([f"{number:012x}.", *texts]).split(" ")
        return " ".join(found[:words])

    return passage


def _cut(passages: Callable[[int, int], str], length: int, tokenize: Tokenize) -> list[int]:
    """The first ids of a long enough text: exact whatever the tokenizer."""
    words = length
    while len(ids := tokenize(passages(0, words))) < length:
        words *= 2
    return ids[:length]


def exact_text(passages: Callable[[int, int], str], length: int, tokenize: Tokenize) -> str:
    """Text that the tokenizer counts as exactly that many tokens: the most words that fit, then parts of the next
    word and fillers until the count is met. Raises PromptsError where eight beginnings fail."""
    for attempt in range(_TRIES):
        words = _most_words(functools.partial(_tokens, passages, tokenize, attempt), length)
        text = passages(attempt, words)
        rest = passages(attempt, words + 1).removeprefix(text)
        found = _filled_up(text, rest, length, tokenize)
        if found is not None:
            return found
    raise PromptsError(
        f"No text of exactly {length} tokens was found in {_TRIES} tries with the server's /tokenize. "
        'Raise input_tokens, or send ids: form = "ids".'
    )


def _tokens(passages: Callable[[int, int], str], tokenize: Tokenize, attempt: int, words: int) -> int:
    return len(tokenize(passages(attempt, words)))


def _most_words(tokens: Callable[[int], int], length: int) -> int:
    """The most words whose count stays within the length; doubles up to it, then halves the gap."""
    high = 1
    while tokens(high) <= length:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(middle) <= length else (low, middle)
    return low


def _filled_up(text: str, rest: str, length: int, tokenize: Tokenize) -> str | None:
    """Appends what brings the count nearer without passing it; None where a round brings nothing."""
    missing = length - len(tokenize(text))
    while missing > 0:
        for more in (*(rest[:end] for end in range(len(rest) - 1, 0, -1)), *_FILLERS):
            left = length - len(tokenize(text + more))
            if 0 <= left < missing:
                text, missing, rest = text + more, left, ""
                break
        else:
            return None
    return text if missing == 0 else None
