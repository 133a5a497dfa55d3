"""Prompts from a file. A line is {"prompt": "text" | [ids]} or {"messages": […]}, with max_tokens or without."""

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from loadgen.prompts import Prompt, PromptsError, SourceSettings, Tokenize

Id = Annotated[int, Field(ge=0, lt=1 << 31)]


class Settings(SourceSettings):
    source: Literal["jsonl"] = "jsonl"
    path: Path = Field(strict=False)  # a relative one is taken from the profile's folder
    slices: dict[str, tuple[int, int]] = Field(default={}, strict=False)  # pass key: [first, last + 1) of the prompts

    @field_validator("path")
    @classmethod
    def _from_the_profile(cls, path: Path, info: ValidationInfo) -> Path:
        folder = (info.context or {}).get("folder")
        return path if folder is None else (folder / path).resolve()

    def identity(self) -> dict[str, Any]:
        """The content counts, not where on this host it lies."""
        return {"source": self.source, "sha256": hashlib.sha256(_bytes(self.path)).hexdigest()}

    def reserve(self, wanted: Mapping[str, int], taken: dict[Path, int]) -> Self:
        """Slices in the order of the passes, after what profiles with the same file have taken. A slice that was given
        stays, unless its pass has grown since."""
        first = max([taken.get(self.path, 0), *(last for _, last in self.slices.values())])
        slices = dict(self.slices)
        for pass_key, count in wanted.items():
            given_first, given_last = slices.get(pass_key, (0, 0))
            if given_last - given_first < count:
                slices[pass_key] = (first, first + count)
                first += count
        taken[self.path] = first
        has = len(_read(self.path))
        if has < first:
            raise PromptsError(
                f"{self.path} has {has:,} different prompts, and the passes asked for need {first:,}, none of them "
                f"twice (a server would answer repeated ones from its cache). "
                f"Add {first - has:,} lines, or ask for fewer passes or requests."
            )
        return self.model_copy(update={"slices": slices})


def prompts(settings: Settings, seed: int, pass_key: str, count: int, tokenize: Tokenize | None) -> list[Prompt]:
    """The pass's own slice, in the file's order. Lines that occur twice are taken once."""
    first, last = settings.slices.get(pass_key, (0, 0))
    if last - first < count:
        raise PromptsError(
            f"Pass {pass_key} asks for {count} prompts of {settings.path}, and {last - first} were set aside for it "
            "(loadgen.prompts.reserve): without its own slice two passes would share prompts."
        )
    return list(_read(settings.path)[first : first + count])


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: str


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str | Annotated[list[Id], Field(min_length=1)] | None = None
    messages: Annotated[list[_Message], Field(min_length=1)] | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000_000)

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError('give "prompt" or "messages", one of the two')
        return self

    def as_prompt(self) -> Prompt:
        return Prompt(
            text=self.prompt if isinstance(self.prompt, str) else None,
            token_ids=self.prompt if isinstance(self.prompt, list) else None,
            messages=[message.model_dump() for message in self.messages] if self.messages else None,
            max_tokens=self.max_tokens,
        )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PromptsError(f"{path}, which the prompts are to come from, cannot be read: {error.strerror}.") from error


def _read(path: Path) -> tuple[Prompt, ...]:
    return _parsed(path, _bytes(path))


@functools.lru_cache(maxsize=4)
def _parsed(path: Path, content: bytes) -> tuple[Prompt, ...]:
    """Every different prompt in the file's order; empty lines are skipped. Split at line feeds alone: JSON text may
    hold U+2028 and its like, which str.splitlines takes for line ends."""
    different: dict[str, Prompt] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            parsed = _line(path, number, line)
            different.setdefault(json.dumps(parsed.model_dump(exclude={"max_tokens"})), parsed.as_prompt())
    return tuple(different.values())


def _line(path: Path, number: int, line: bytes) -> _Line:
    try:
        return _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PromptsError(
            f"{path}, line {number}: {where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}. "
            'A line is {"prompt": "text" | [ids]} or {"messages": [{"role", "content"}]}, with max_tokens or not.'
        ) from error
