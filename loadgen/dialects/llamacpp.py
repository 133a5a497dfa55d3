"""llama.cpp's server: its own /completion, the one that tells token ids, and the standard's chat."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from loadgen.dialects import Metric, Reading, Scored
from loadgen.dialects.openai import as_count, base_body, first_choice, listed, read_choice, read_logprobs, sampling
from loadgen.record import SCORED_TOP_K, Setting, Usage

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from loadgen.request import Request

NAME = "llamacpp"
PATHS: Mapping[str, str] = {"completions": "/completion", "chat": "chat/completions"}
SETTINGS_PAGE: str | None = "props"
METRICS: Mapping[str, Metric] = {
    "running": Metric(("llamacpp:requests_processing",), "sum"),
    "waiting": Metric(("llamacpp:requests_deferred",), "sum"),
    "kv_usage": Metric(("llamacpp:kv_cache_usage_ratio",), "max"),  # of builds before 2026
    "prompt_tokens": Metric(("llamacpp:prompt_tokens_total",), "sum"),
    "generation_tokens": Metric(("llamacpp:tokens_predicted_total",), "sum"),
    "drafts": Metric(("llamacpp:spec_decode_num_drafts_total",), "sum"),
    "draft_tokens": Metric(("llamacpp:spec_decode_num_draft_tokens_total",), "sum"),
    "accepted_tokens": Metric(("llamacpp:spec_decode_num_accepted_tokens_total",), "sum"),
    "cached_tokens": Metric(("llamacpp:prompt_tokens_cached_total",), "sum"),
}
_UNKNOWN = frozenset(["min_tokens"])
_FINISH = {"eos": "stop", "word": "stop", "limit": "length"}


def body(request: "Request", model: str) -> dict[str, Any]:
    known = {name: value for name, value in sampling(request).items() if name not in _UNKNOWN}
    asked = base_body(request, model) | known
    if request.kind == "chat":
        return asked
    alternatives = {"n_probs": known["logprobs"]} if known.get("logprobs") is not None else {}
    return asked | alternatives | {"return_tokens": True}


def reader() -> Callable[[dict[str, Any]], Reading]:
    return _Stream().read


class _Stream:
    """Watches the count beside the ids: of a character in several tokens, only the last one's id is sent."""

    def __init__(self) -> None:
        self._counted = 0

    def read(self, event: dict[str, Any]) -> Reading:
        if "stop" not in event:
            return _read_standard(event)
        ids, counted = event.get("tokens"), as_count(event.get("tokens_predicted"))
        if counted is not None:
            if ids is not None and counted - self._counted > len(ids):
                ids = None  # better no ids than some: what follows a gap is read as if it were not there
            self._counted = counted
        timings, probabilities = event.get("timings") or {}, event.get("completion_probabilities")
        usage = Usage(
            prompt_tokens=as_count(event.get("tokens_evaluated")),
            completion_tokens=counted,
            cached_tokens=as_count(timings.get("cache_n")),
        )
        stopped = event["stop"] is True
        return Reading(
            text=event.get("content") or "",
            token_ids=ids,
            finish_reason=_FINISH.get(event.get("stop_type") or "") if stopped else None,
            usage=usage,
            logprobs=read_logprobs({"content": probabilities}) if probabilities else None,
            speculation=_speculation(timings),
            choice=True,
            last=stopped,
        )


def _read_standard(event: dict[str, Any]) -> Reading:
    """Log-probabilities have the chat's form everywhere."""
    return read_choice(event, first_choice(event))._replace(speculation=_speculation(event.get("timings") or {}))


def _speculation(timings: dict[str, Any]) -> dict[str, Any] | None:
    return {name: timings[name] for name in timings if name.startswith("draft_n")} or None


def score_body(token_ids: list[int], model: str) -> dict[str, Any] | None:
    """None: it has no log-probabilities of a prompt."""
    return None


def read_scores(answer: dict[str, Any], first: int = 0) -> list[Scored | None]:
    raise ValueError("llama.cpp has no log-probabilities of a prompt.")


def next_body(token_ids: list[int], model: str) -> dict[str, Any] | None:
    return {
        "prompt": token_ids,
        "n_predict": 1,
        "temperature": 1,
        "n_probs": SCORED_TOP_K,
        "post_sampling_probs": False,
        "cache_prompt": True,
        "stream": False,
    }


def read_next(answer: dict[str, Any]) -> list[tuple[int, float]]:
    (entry,) = answer["completion_probabilities"]
    return listed((top["id"], top["logprob"]) for top in entry["top_logprobs"])


def settings(page: str) -> dict[Setting, str]:
    """Slots, and the tokens of each."""
    told = orjson.loads(page)
    longest = (told.get("default_generation_settings") or {}).get("n_ctx")
    named: dict[Setting, Any] = {"most sequences at once": told.get("total_slots"), "longest sequence": longest}
    return {name: str(value) for name, value in named.items() if value is not None}


def capacity(families: "Iterable[Family]") -> int | None:
    """None: its metrics do not tell."""
    return None
