"""What is asked of a model, by source: one file a source, its name the key in a profile's [prompts]."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, cast

from pydantic import BaseModel, ConfigDict

from loadgen.record import nearest

Tokenize = Callable[[str], list[int]]
"""Text to token ids by the server's own tokenizer, special tokens included as the server would add them."""


class PromptsError(Exception):
    """A source cannot give the prompts asked for: what is missing, why it matters, what to do."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. A source gives each form that it can: text or token ids for completions, messages for chat."""

    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[dict[str, str]] | None = None
    max_tokens: int | None = None  # None: the profile's


class SourceSettings(BaseModel):
    """What every source's settings share: the source's own name, so that they can be written down and read back."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    source: str

    def identity(self) -> dict[str, Any]:
        """What the profile's digest is made from: the prompts' content, not where on this host they lie."""
        return self.model_dump(mode="json")

    def reserve(self, wanted: Mapping[str, int], taken: dict[Path, int]) -> Self:
        """See the module's `reserve`; a source without an end has nothing to set aside."""
        return self


class Source(Protocol):
    """What a file of this folder offers."""

    Settings: type[SourceSettings]

    def prompts(self, settings: Any, seed: int, pass_key: str, count: int, tokenize: Tokenize | None) -> list[Prompt]:
        """Deterministic in (settings, seed, pass_key); the first prompts do not depend on the count."""


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_source(name: str) -> Source:
    if name not in names():
        raise PromptsError(f"There is no prompt source {name!r}. {nearest(name, names())}")
    return cast(Source, importlib.import_module(f"{__name__}.{name}"))


def make(
    settings: SourceSettings, seed: int, pass_key: str, count: int, tokenize: Tokenize | None = None
) -> list[Prompt]:
    """The prompts of one pass, the same for every endpoint. Two pass keys never share a prompt.

    Raises PromptsError, where a file ran out or a tokenizer is needed and none is given.
    """
    return load_source(settings.source).prompts(settings, seed, pass_key, count, tokenize)


def reserve(wanted: Sequence[tuple[SourceSettings, Mapping[str, int]]]) -> list[SourceSettings]:
    """Sets a slice of its file aside for every pass, so that nothing is asked twice: {pass key: prompts} a source.

    Call it once for all that will be driven, before the start; again with the settings it gave, for more passes.
    Raises PromptsError with the numbers, where a file has fewer prompts than are asked for.
    """
    taken: dict[Path, int] = {}
    for settings, _ in wanted:
        settings.reserve({}, taken)  # notes what earlier calls have set aside, for all before anything new
    return [settings.reserve(passes, taken) for settings, passes in wanted]
