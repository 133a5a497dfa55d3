"""SGLang 0.5 and later: the standard's methods with token ids, and what its own /generate streams and scores."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import orjson

from loadgen.dialects import Metric, Reading, Scored, ServerError
from loadgen.dialects.openai import PATHS as METHODS
from loadgen.dialects.openai import (
    Alternative,
    as_count,
    as_logprob,
    as_scored_logprob,
    as_text,
    base_body,
    first_choice,
    read_choice,
    sampling,
    unique,
)
from loadgen.record import SCORED_TOP_K, Logprob, Setting, Usage

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from loadgen.request import Request


def _metric(name: str, combine: Literal["sum", "max"] = "sum") -> Metric:
    """Some exporters put an underscore where SGLang has a colon."""
    return Metric((f"sglang:{name}", f"sglang_{name}"), combine)


NAME = "sglang"
# Scores come from /generate alone. Replies do not: it repeats all that was said in every event.
PATHS: Mapping[str, str] = {**METHODS, "scores": "/generate"}
SETTINGS_PAGE: str | None = "server_info"
METRICS: Mapping[str, Metric] = {
    "running": _metric("num_running_reqs"),
    "waiting": _metric("num_queue_reqs"),
    "kv_usage": _metric("token_usage", "max"),
    "preemptions": _metric("num_retracted_requests_total"),
    "prompt_tokens": _metric("prompt_tokens_total"),
    "generation_tokens": _metric("generation_tokens_total"),
    # Its gauges of acceptance hold the last interval's value, not a pass's.
    "verify_calls": _metric("spec_verify_calls_total"),
    "cached_tokens": _metric("cached_tokens_total"),
}
_SETTINGS: Mapping[Setting, str] = {
    "KV cache type": "kv_cache_dtype",
    "KV cache block size": "page_size",
    "share of the memory": "mem_fraction_static",
    "most sequences at once": "max_running_requests",
    "longest sequence": "context_length",
}
_CAPACITY = ("sglang:max_total_num_tokens", "sglang_max_total_num_tokens")


def body(request: "Request", model: str) -> dict[str, Any]:
    asked = base_body(request, model) | sampling(request) | {"return_spec_tokens_details": True}
    if request.kind == "completions":
        return asked | {"return_token_ids": True}
    # A streamed chat refuses that field. It tells all ids at its end; until then running usage counts the tokens.
    ids = {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}
    return asked | ids | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def reader() -> Callable[[dict[str, Any]], Reading]:
    return _Stream().read


class _Stream:
    """Makes of events that hold all so far what is new in each. A server can be told to send only that itself."""

    def __init__(self) -> None:
        self._text = ""
        self._ids: list[int] = []
        self._scored = 0
        self._holds_all: bool | None = None  # not known before there is something to repeat

    def read(self, event: dict[str, Any]) -> Reading:
        meta = event.get("meta_info")
        if meta is None:
            return _read_standard(event)
        text, ids, logprobs = event.get("text") or "", event.get("output_ids"), read_triples(meta, "output")
        usage = Usage(
            prompt_tokens=as_count(meta.get("prompt_tokens")),
            completion_tokens=as_count(meta.get("completion_tokens")),
            cached_tokens=as_count(meta.get("cached_tokens")),
            reasoning_tokens=as_count(meta.get("reasoning_tokens")),
        )
        finish_reason, error = _finish(meta.get("finish_reason"))
        reading = Reading(
            text=text,
            token_ids=ids,
            prompt_token_ids=event.get("prompt_token_ids"),
            finish_reason=finish_reason,
            usage=usage,
            logprobs=logprobs,
            speculation={name: meta[name] for name in meta if name.startswith("spec_")} or None,
            error=error,
            choice=True,
        )
        return self._new_in(reading) if self._repeats(reading) else reading

    def _repeats(self, reading: Reading) -> bool:
        """Whether this stream's events hold all so far. The first one is read alike in both ways."""
        known, ids, total = len(self._ids), reading.token_ids, reading.usage and reading.usage.completion_tokens
        if self._holds_all is None and ids is None and self._text:
            self._holds_all = reading.text.startswith(self._text)
        elif self._holds_all is None and ids is not None and known:
            # The same token twice begins as the first event did; the count tells them apart.
            self._holds_all = ids[:known] == self._ids and total != known + len(ids)
        return self._holds_all is not False

    def _new_in(self, reading: Reading) -> Reading:
        text, kept = reading.text, None
        if not text.startswith(self._text):  # as where a stop word is taken back
            kept = _common(self._text, text)
        new_text = text[len(self._text) if kept is None else kept :]
        self._text = text
        ids, logprobs = reading.token_ids, reading.logprobs
        if ids is not None:
            self._ids, ids = list(ids), ids[len(self._ids) :]
        if logprobs is not None:
            self._scored, logprobs = len(logprobs), logprobs[self._scored :]
        return reading._replace(text=new_text, kept=kept, token_ids=ids, logprobs=logprobs)


def _common(text: str, other: str) -> int:
    """Length of what both begin with."""
    return next(
        (index for index, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other))
    )


def _finish(reason: Any) -> tuple[str | None, ServerError | None]:
    """An object of a type and its details; an abort with a status is the server's fault, not somebody's wish."""
    if not isinstance(reason, dict):
        return reason, None
    status = reason.get("status_code")
    return reason.get("type"), ServerError(str(reason.get("message")), status) if status is not None else None


def _read_standard(event: dict[str, Any]) -> Reading:
    choice = first_choice(event)
    if choice is None:
        reading, extension = read_choice(event, None), event.get("sglext") or {}
        ids, speculation = extension.get("output_ids"), extension.get("spec_tokens_details")
        return reading._replace(
            reply_ids=ids[0] if ids else None,
            prompt_token_ids=extension.get("input_ids"),
            speculation=speculation if isinstance(speculation, dict) else None,
        )
    reading = read_choice(event, choice, choice.get("token_ids"), choice.get("prompt_token_ids"))
    ids, logprobs = reading.token_ids, reading.logprobs
    if ids is None or logprobs is None or len(ids) != len(logprobs):
        return reading
    # Tokens are named by their text here, which more than one can have.
    named = [
        Logprob(token_id=token_id, token=one.token, logprob=one.logprob, top=one.top)
        for token_id, one in zip(ids, logprobs, strict=True)
    ]
    return reading._replace(logprobs=named)


def read_triples(meta: dict[str, Any], side: Literal["input", "output"]) -> list[Logprob] | None:
    """Log-probabilities as (value, id, text or null); None where none were asked for."""
    tokens = meta.get(f"{side}_token_logprobs")
    if tokens is None:
        return None
    tops = meta.get(f"{side}_top_logprobs") or [None] * len(tokens)
    return [
        Logprob(token_id=own[0], token=own[1], logprob=own[2], top=unique(_triple(one) for one in top or []))
        for own, top in zip(map(_triple, tokens), tops, strict=True)
    ]


def _triple(triple: list[Any]) -> Alternative:
    """Raises ValueError for what is none."""
    value, token_id, text = triple
    if type(token_id) is not int:
        raise ValueError(f"{token_id!r} is no token id")
    return token_id, as_text(text), as_logprob(value)


def score_body(token_ids: list[int], model: str) -> dict[str, Any] | None:
    """A generation of one greedy token, for the log-probabilities of its prompt from the first position on."""
    return {
        "input_ids": token_ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": SCORED_TOP_K,
        "stream": False,
    }


def read_scores(answer: dict[str, Any], first: int = 0) -> list[Scored | None]:
    """The first position is None: nothing comes before it. The actual token is given apart from the likeliest ones."""
    positions = read_triples(answer["meta_info"], "input")
    if positions is None:
        raise ValueError("The answer holds no input_token_logprobs.")
    return [_scored(position) if position.top and i >= first else None for i, position in enumerate(positions)]


def _scored(position: Logprob) -> Scored:
    """At a position that lists alternatives, null can only be −inf."""
    top = {token_id: as_scored_logprob(value) for token_id, _, value in position.top if token_id is not None}
    assert position.token_id is not None, "a triple has one"
    own = top.setdefault(position.token_id, as_scored_logprob(position.logprob))
    return Scored(position.token_id, own, list(top.items()))


def next_body(token_ids: list[int], model: str) -> dict[str, Any] | None:
    """None: /generate scores whole prompts."""
    return None


def read_next(answer: dict[str, Any]) -> list[tuple[int, float]]:
    raise ValueError("SGLang scores whole prompts.")


def settings(page: str) -> dict[Setting, str]:
    """Of its arguments as it resolved them."""
    told = orjson.loads(page)
    found = {ours: str(told[theirs]) for ours, theirs in _SETTINGS.items() if told.get(theirs) is not None}
    if told.get("disable_radix_cache") is not None:
        found["prefix cache"] = str(not told["disable_radix_cache"])
    return found


def capacity(families: "Iterable[Family]") -> int | None:
    """Tokens over all data-parallel ranks; ranks that share one cache say the same of it."""
    ranks: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.name in _CAPACITY:
                rank = sample.labels.get("dp_rank", "")
                ranks[rank] = max(ranks.get(rank, 0.0), sample.value)
    total = sum(ranks.values())
    return int(total) if 0 < total < float("inf") else None
