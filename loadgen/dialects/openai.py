"""The plain standard: fields that OpenAI documents, and nothing else."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from loadgen.dialects import DialectError, Metric, Reading, Scored, ServerError
from loadgen.record import Logprob, Setting, Usage

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from loadgen.request import Request

NAME = "openai"
SETTINGS_PAGE: str | None = None
METRICS: Mapping[str, Metric] = {}
PATHS: Mapping[str, str] = {"completions": "completions", "chat": "chat/completions"}

# Strict servers refuse what they do not know, so top_k, min_p and the like are left out (and the record says so).
_KNOWN = frozenset(
    ["max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "logprobs"]
)
Alternative = tuple[int | None, str | None, float | None]

_CLAMPED_INFINITY = -9999.0  # how vLLM writes −inf into JSON


def body(request: "Request", model: str) -> dict[str, Any]:
    return base_body(request, model) | {
        name: value for name, value in sampling(request).items() if name in _KNOWN or name == "top_logprobs"
    }


def base_body(request: "Request", model: str) -> dict[str, Any]:
    """Model, prompt and streaming. Raises DialectError where the prompt has no form that the method takes."""
    prompt = request.prompt
    streaming = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if request.kind == "completions":
        given = prompt.token_ids if prompt.token_ids is not None else prompt.text
        if given is None:
            raise DialectError(f"Prompt {request.prompt_id} has messages only: give its profile endpoint = 'chat'.")
        return streaming | {"prompt": given}
    messages = prompt.messages
    if messages is None and prompt.text is not None:
        messages = [{"role": "user", "content": prompt.text}]
    if messages is None:
        raise DialectError(f"Prompt {request.prompt_id} has token ids only: give its profile endpoint = 'completions'.")
    return streaming | {"messages": messages}


def sampling(request: "Request") -> dict[str, Any]:
    """The fields asked for, `logprobs` (a number of alternatives) in the form that the method takes."""
    asked = dict(request.asked)
    if request.kind == "chat" and type(asked.get("logprobs")) is int:
        asked |= {"logprobs": True, "top_logprobs": asked["logprobs"]}
    return asked


def reader() -> Callable[[dict[str, Any]], Reading]:
    return read


def read(event: dict[str, Any]) -> Reading:
    return read_choice(event, first_choice(event))


def first_choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """None where the event holds none, as a usage event or Azure's prelude."""
    choices = event.get("choices")
    return choices[0] if choices else None


def read_choice(
    event: dict[str, Any],
    choice: dict[str, Any] | None,
    token_ids: list[int] | None = None,
    prompt_token_ids: list[int] | None = None,
) -> Reading:
    """What the standard's fields say; the ids are handed in by dialects that have them."""
    usage, error = event.get("usage"), event.get("error")
    if choice is None:
        flat = event if event.get("object") == "error" else None
        return Reading(usage=read_usage(usage), error=read_error(error or flat))
    delta, logprobs = choice.get("delta"), choice.get("logprobs")
    text = choice.get("text") if delta is None else delta.get("content")
    # By position, in Reading's order: this runs for every chunk.
    return Reading(
        text or "",
        (delta.get("reasoning") or delta.get("reasoning_content") or "") if delta else "",
        (delta.get("tool_calls") or None) if delta else None,
        token_ids,
        prompt_token_ids,
        choice.get("finish_reason") or None,  # some servers say "" while they go on
        read_usage(usage) if usage else None,
        read_logprobs(logprobs) if logprobs else None,
        None,
        read_error(error) if error else None,
        True,
    )


def read_usage(usage: dict[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details, generated = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=as_count(usage.get("prompt_tokens")),
        completion_tokens=as_count(usage.get("completion_tokens")),
        cached_tokens=as_count(details.get("cached_tokens")),
        reasoning_tokens=as_count(usage.get("reasoning_tokens", generated.get("reasoning_tokens"))),
    )


def as_count(value: Any) -> int | None:
    """None where the server says something that counts nothing."""
    return value if type(value) is int and value >= 0 else None


def read_error(error: Any) -> ServerError | None:
    """An error of any shape: an object with a message, or a bare sentence."""
    if not error:
        return None
    if not isinstance(error, dict):
        return ServerError(str(error))
    return ServerError(str(error.get("message") or error.get("type") or error), error.get("code"))


def read_logprobs(logprobs: dict[str, Any]) -> list[Logprob]:
    """Both forms: chat's list of objects under "content", and completions' parallel lists."""
    content = logprobs.get("content")
    if content is not None:
        return [_chat_logprob(entry) for entry in content]
    tokens, values = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    return [
        Logprob(
            token_id=as_token_id(token),
            token=as_text(token),
            logprob=as_logprob(value),
            top=[(as_token_id(key), key, as_logprob(top)) for key, top in (alternatives or {}).items()],
        )
        for token, value, alternatives in zip(tokens, values, tops, strict=True)
    ]


def _chat_logprob(entry: dict[str, Any]) -> Logprob:
    return Logprob(
        token_id=_entry_id(entry),
        token=as_text(entry.get("token")),
        logprob=as_logprob(entry.get("logprob")),
        top=unique(
            (_entry_id(top), as_text(top.get("token")), as_logprob(top.get("logprob")))
            for top in entry.get("top_logprobs") or []
        ),
    )


def listed(alternatives: Iterable[tuple[Any, Any]]) -> list[tuple[int, float]]:
    """(id, log-probability) of each. Raises ValueError where one is none."""
    found = [(token_id, as_scored_logprob(value)) for token_id, value in alternatives]
    if not found or any(type(token_id) is not int for token_id, _ in found):
        raise ValueError("The answer does not list one token's alternatives by their ids.")
    return found


def unique(alternatives: Iterable[Alternative]) -> list[Alternative]:
    """In the server's order; some list the sampled token twice, and its probability would count twice."""
    return list(dict.fromkeys(alternatives))


def _entry_id(entry: dict[str, Any]) -> int | None:
    token_id = entry.get("id")
    return token_id if type(token_id) is int else as_token_id(entry.get("token"))


def as_text(token: Any) -> str | None:
    """Raises TypeError for a token that is no text."""
    if token is not None and not isinstance(token, str):
        raise TypeError("a token's text is no text")
    return token


def as_token_id(token: Any) -> int | None:
    """The id in "token_id:N"; None for a token given by its text."""
    if isinstance(token, str) and token.startswith("token_id:") and token[9:].isdecimal() and len(token) < 9 + 11:
        return int(token[9:])
    return None


def as_logprob(value: Any) -> float | None:
    """Natural log; None where the server gives none. JSON has no −inf: null, −9999 and "-inf" stand for it."""
    if isinstance(value, int | float) and value > _CLAMPED_INFINITY:
        return float(value)
    return None


def as_scored_logprob(value: Any) -> float:
    """The same for a listed token, of which null can only mean −inf. Raises ValueError for what is no number."""
    if isinstance(value, str) and value.lower() not in ("-inf", "-infinity"):
        raise ValueError(f"{value!r} is no log-probability")
    logprob = as_logprob(value)
    return -math.inf if logprob is None else logprob


def score_body(token_ids: list[int], model: str) -> dict[str, Any] | None:
    """None: the standard has no log-probabilities of a prompt."""
    return None


def read_scores(answer: dict[str, Any], first: int = 0) -> list[Scored | None]:
    raise ValueError("The plain standard has no log-probabilities of a prompt.")


def next_body(token_ids: list[int], model: str) -> dict[str, Any] | None:
    """None: alternatives are named by their text, which several tokens may have."""
    return None


def read_next(answer: dict[str, Any]) -> list[tuple[int, float]]:
    raise ValueError("The plain standard has no ids of alternatives.")


def settings(page: str) -> dict[Setting, str]:
    """Nothing: the standard has no such page."""
    return {}


def capacity(families: "Iterable[Family]") -> int | None:
    """None: the standard has no metrics."""
    return None
