"""A load shape: lanes or arrivals, prompts, reply lengths, sampling, limits. Read from TOML, checked, then frozen."""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from loadgen.prompts import PromptsError, SourceSettings, load_source
from loadgen.record import Asked, available, find, nearest
from loadgen.request import Kind

T = TypeVar("T", bound=BaseModel)

_MOST = 1_000_000_000  # of anything counted; more fits into no run, and beyond 64 bits into no file
_LONGEST_S = 30 * 86_400.0

_KV = re.compile(r"kv:(0?\.\d+|1(\.0*)?)")


class ProfileError(Exception):
    """A profile that cannot be driven: the file, the key, the values allowed."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Limits(_Table):
    """How long to wait, in seconds, before a request is a failed one."""

    connect_s: float = Field(default=10.0, gt=0, le=_LONGEST_S)
    first_token_s: float = Field(default=300.0, gt=0, le=_LONGEST_S)  # long: a queued request is not a stalled one
    idle_s: float = Field(default=60.0, gt=0, le=_LONGEST_S)  # between bytes that are not comments, after the first
    request_s: float = Field(default=900.0, gt=0, le=_LONGEST_S)


class Warmup(_Table):
    requests: int = Field(default=8, ge=0, le=_MOST)


class Arrivals(_Table):
    """An open loop: requests come when they come, however many are still unanswered."""

    kind: Literal["poisson", "constant"] = "poisson"
    rate_per_s: float = Field(ge=1 / _LONGEST_S, le=_MOST)


def _off(top_k: Any) -> Any:
    """Servers spell "off" as 0 or −1; a profile may also say it."""
    return -1 if top_k in ("off", 0) and not isinstance(top_k, bool) else top_k


class Sampling(_Table):
    """Sent with every request, every field of it: a server inherits what is not sent from its model's files."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: Annotated[int, Field(ge=-1, le=_MOST), BeforeValidator(_off)] = -1
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0)  # 1: none
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)  # one for all requests; None: none is sent
    request_seeds: bool = False  # a seed of its own for every request, different on every endpoint
    ignore_eos: bool = False

    @model_validator(mode="after")
    def _one_seed(self) -> Self:
        if self.seed is not None and self.request_seeds:
            raise ValueError("seed and request_seeds exclude each other: one seed for all, or one a request")
        return self

    def asked(self) -> Asked:
        """The fields as they are sent. ignore_eos only where it is on: strict servers know no such field."""
        optional = {"seed": self.seed, "ignore_eos": self.ignore_eos or None}
        always = self.model_dump(exclude={"request_seeds", *optional})
        return always | {name: value for name, value in optional.items() if value is not None}


def _lanes(lanes: Any) -> Any:
    number = isinstance(lanes, int) and not isinstance(lanes, bool) and 1 <= lanes <= _MOST
    if lanes is None or number or (isinstance(lanes, str) and _KV.fullmatch(lanes) and float(lanes[3:]) > 0):
        return lanes
    raise ValueError(
        'allowed are a number from 1 up, or "kv:SHARE" with a SHARE above 0 up to 1: '
        "as many lanes as fill that share of the stock server's KV cache"
    )


class Profile(_Table):
    """Exactly one of lanes and arrivals; exactly one of requests and requests_per_lane."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")  # part of file names
    about: str = ""
    lanes: Annotated[int | str | None, BeforeValidator(_lanes)] = None
    arrivals: Arrivals | None = None
    requests: int | None = Field(default=None, ge=1, le=_MOST)  # a pass
    requests_per_lane: int | None = Field(default=None, ge=1, le=_MOST)
    start_spread_ms: float = Field(
        default=1.0, ge=0, le=60_000
    )  # between the first sends of neighbouring lanes; 0: a burst
    endpoint: Kind = "completions"
    max_tokens: int = Field(ge=1, le=_MOST)
    prompts: SerializeAsAny[SourceSettings]
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    warmup: Warmup = Warmup()

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if (self.lanes is None) == (self.arrivals is None):
            raise ValueError("give lanes (closed loop) or [arrivals] (open loop), one of the two")
        if (self.requests is None) == (self.requests_per_lane is None):
            raise ValueError("give requests or requests_per_lane, one of the two")
        if self.arrivals and self.requests is None:
            raise ValueError("[arrivals] has no lanes to count by: give requests")
        if isinstance(self.lanes, int) and self.requests is not None and self.requests < self.lanes:
            raise ValueError(
                f"requests = {self.requests} leaves some of {self.lanes} lanes without any: "
                "give at least as many requests as lanes, or fewer lanes"
            )
        return self

    @property
    def kv_share(self) -> float | None:
        """The share of stock's KV cache to fill; None where the lanes are a number, or arrivals rule."""
        return float(self.lanes.removeprefix("kv:")) if isinstance(self.lanes, str) else None

    def count(self, lanes: int | None) -> int:
        """Requests of a pass over that many lanes; a pass never has fewer requests than lanes."""
        if self.requests is not None:
            return max(self.requests, lanes or 0)
        assert self.requests_per_lane is not None
        assert lanes is not None  # arrivals have requests
        return self.requests_per_lane * lanes

    def asked(self) -> Asked:
        """max_tokens and every sampling field, as each request sends them unless its prompt says otherwise."""
        return {"max_tokens": self.max_tokens, **self.sampling.asked()}

    def digest(self) -> str:
        """sha256 of the canonical JSON of all that shapes the load; name and about do not."""
        content = self.model_dump(mode="json", exclude={"name", "about", "prompts"})
        canonical = json.dumps(content | {"prompts": self.prompts.identity()}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def load(name_or_path: str) -> Profile:
    """A shipped profile by name, or any by path. Raises ProfileError, which names the file, the key and the values."""
    path = find(name_or_path)
    if path is None:
        raise ProfileError(
            f"There is no profile {name_or_path!r}, neither shipped nor a file. {nearest(name_or_path, available())}"
        )
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ProfileError(f"{path} is not readable as TOML: {error}.") from error
    return validated({"name": path.stem, **raw}, where=str(path), folder=path.parent)


def validated(raw: Mapping[str, Any], where: str, folder: Path | None = None) -> Profile:
    """Raises ProfileError with one line a mistake. Relative paths of prompts are taken from the folder."""
    prompts = raw.get("prompts", {})
    if not isinstance(prompts, SourceSettings):
        prompts = _source_settings(prompts, where, folder)
    return _checked(Profile, {**raw, "prompts": prompts}, where)


def _source_settings(raw: Any, where: str, folder: Path | None) -> SourceSettings:
    if not isinstance(raw, Mapping):
        raise ProfileError(
            f"{where}: prompts = {raw!r}: a table [prompts] is expected, with a source and its settings."
        )
    source = raw.get("source", "builtin")
    try:
        settings = load_source(str(source)).Settings
    except PromptsError as error:
        raise ProfileError(f"{where}: prompts.source = {source!r}: {error}") from error
    return _checked(settings, {**raw, "source": source}, where, prefix=("prompts",), context={"folder": folder})


def _checked(model: type[T], raw: Any, where: str, prefix: tuple[str, ...] = (), context: Any = None) -> T:
    try:
        return model.model_validate(raw, context=context)
    except ValidationError as error:
        lines = _mistakes(model, error, prefix)
        raise ProfileError("\n".join(f"{where}: {line}" for line in lines)) from error


def overridden(profile: Profile, changes: Mapping[str, Any]) -> Profile:
    """The profile with a command line's options laid over it, checked anew; a change of None changes nothing.

    Takes Profile's own keys, Sampling's (seed is the one that is sent, not the run's), and request_rate per second.
    Lanes replace arrivals and the other way round; so do requests and requests_per_lane. Raises ProfileError.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        return profile
    rivals = [("lanes", "request_rate"), ("requests", "requests_per_lane")]
    for one, other in rivals:
        if one in given and other in given:
            raise ProfileError(f"{_flag(one)} and {_flag(other)} exclude each other: give one of them.")
    raw = profile.model_dump(exclude_none=True, exclude={"prompts"}) | {"prompts": profile.prompts}
    if "lanes" in given:
        raw.pop("arrivals", None)
    if "request_rate" in given:
        raw.pop("lanes", None)
        raw["arrivals"] = {**raw.get("arrivals", {}), "rate_per_s": given.pop("request_rate")}
    for one, other in (*rivals[1:], rivals[1][::-1]):
        if one in given:
            raw.pop(other, None)
    sampling = {name: given.pop(name) for name in Sampling.model_fields if name in given}
    raw["sampling"] |= sampling
    return validated(raw | given, where=f"profile {profile.name} with the options given")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _mistakes(model: type[BaseModel], error: ValidationError, prefix: tuple[str, ...]) -> list[str]:
    """One line a mistake: the key with its value, what is wrong with it, what is allowed."""
    return [_sentence(model, mistake, prefix) for mistake in error.errors(include_url=False)]


def _sentence(model: type[BaseModel], mistake: Any, prefix: tuple[str, ...]) -> str:
    loc = [str(part) for part in mistake["loc"]]
    key = ".".join((*prefix, *loc))
    if mistake["type"] == "extra_forbidden":
        return f"unknown key {key}. {nearest(loc[-1], _keys_at(model, loc[:-1]))}"
    if mistake["type"] == "missing":
        return f"{key} is missing."
    wrong = mistake["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return f"{key} = {mistake['input']!r}: {wrong}." if loc else f"{wrong}."


def _keys_at(model: type[BaseModel], loc: list[str]) -> set[str]:
    """The keys of the table that the path leads to; those of an optional table too."""
    for part in loc:
        annotation = model.model_fields[part].annotation
        tables = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next(kind for kind in tables if issubclass(kind, BaseModel))
    return set(model.model_fields)
