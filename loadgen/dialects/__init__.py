"""One file a server's way of speaking; the file's name is its key.

A dialect is a module: bodies to send, what an event of the answer says, and the server's metric names.
No I/O and no clock in here.
"""

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

from loadgen.record import SCORED_TOP_K, Logprob, Setting, Usage, nearest

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from loadgen.request import Request

_MASS_ERROR = 0.01  # a server's rounding; what it lists adds up to 1 at most


class DialectError(Exception):
    """No such dialect, or one that cannot say what is asked of it."""


class ServerError(NamedTuple):
    """An error object inside an answer."""

    message: str
    code: int | str | None = None


class Reading(NamedTuple):
    """What one event of a streamed answer says. A tuple, since one is made for every chunk of a run."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[Any] | None = None
    token_ids: list[int] | None = None  # None: the event says nothing of ids
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    logprobs: list[Logprob] | None = None
    speculation: dict[str, Any] | None = None
    error: ServerError | None = None
    choice: bool = False  # the event holds a choice, be it empty
    kept: int | None = None  # characters of the text so far that still stand, where some are taken back
    reply_ids: list[int] | None = None  # of the whole reply, where a server tells them at its end only
    last: bool = False  # nothing follows, where a server says so in another way than by [DONE]

    @property
    def carries_tokens(self) -> bool:
        """Text, reasoning, a tool call or ids: a role, a finish or a usage alone is no token."""
        return bool(self.text or self.reasoning or self.token_ids or self.tool_calls)


@dataclass(frozen=True, slots=True)
class Scored:
    """A prompt position as the reference sees it; natural logarithms, −inf where the server says so."""

    token_id: int
    logprob: float  # NaN where the server does not tell it: it lists others, and not this one
    top: list[tuple[int, float]]  # all entries the server listed, in its order, with the actual token where it is told

    def unfit(self) -> str | None:
        """Why what is listed is no law, or would depend on the token drawn."""
        mass = math.fsum(math.exp(min(logprob, 1.0)) for _, logprob in self.top)
        if mass > 1 + _MASS_ERROR or not all(0 <= listed < 1 << 31 for listed, _ in self.top):
            return "log-probabilities that are none: they add up to more than 1, or are of no token ids"
        # With fewer alternatives than asked for, whether the token drawn is listed would depend on what was drawn.
        if len(self.top) < SCORED_TOP_K and mass < 1 - _MASS_ERROR:
            return f"{len(self.top)} alternatives a position, where {SCORED_TOP_K} were asked for"
        return None


@dataclass(frozen=True, slots=True)
class Metric:
    """How the server names a figure, and how several series become one."""

    families: tuple[str, ...]  # sample names as exposed (a counter's with its _total), newest first
    combine: Literal["sum", "max"]


class Dialect(Protocol):
    """Satisfied by a module of this package."""

    NAME: str
    METRICS: Mapping[str, Metric]  # neutral name → the server's
    SETTINGS_PAGE: str | None  # beside the API; None: it does not tell its settings
    PATHS: Mapping[str, str]  # of "completions", "chat" and "scores"; with a leading slash it lies beside the API

    def body(self, request: "Request", model: str) -> dict[str, Any]:
        """The JSON body: streamed, usage asked for. A sampling field the dialect does not know is left out."""

    def reader(self) -> Callable[[dict[str, Any]], Reading]:
        """What reads the events of one stream, in their order."""

    def score_body(self, token_ids: list[int], model: str) -> dict[str, Any] | None:
        """None: this dialect cannot score."""

    def read_scores(self, answer: dict[str, Any], first: int = 0) -> list[Scored | None]:
        """One a prompt position, None before `first` or where nothing is said. Raises ValueError for others."""

    def next_body(self, token_ids: list[int], model: str) -> dict[str, Any] | None:
        """For one token after these, sent where completions are. None: this dialect does not list ids of
        alternatives."""

    def read_next(self, answer: dict[str, Any]) -> list[tuple[int, float]]:
        """What may stand there: ids and log-probabilities, those asked for and the sampled one. Raises ValueError."""

    def settings(self, page: str) -> dict[Setting, str]:
        """Setting → value of what bears on speed, as SETTINGS_PAGE tells it. Raises ValueError, KeyError, TypeError."""

    def capacity(self, families: Iterable["Family"]) -> int | None:
        """Tokens that fit into the server's KV cache, from its parsed metrics; None where they do not say."""


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Dialect:
    """Raises DialectError, with the nearest names, for an unknown one."""
    if name not in names():
        raise DialectError(f"There is no dialect {name!r}. {nearest(name, names())}")
    return cast(Dialect, importlib.import_module(f"{__name__}.{name}"))
