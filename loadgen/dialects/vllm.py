"""vLLM 0.10 and later, and the embedded engine, which speaks as it does."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from loadgen.dialects import Metric, Reading, Scored
from loadgen.dialects.openai import PATHS as METHODS
from loadgen.dialects.openai import (
    as_scored_logprob,
    as_token_id,
    base_body,
    first_choice,
    listed,
    read_choice,
    sampling,
)
from loadgen.record import SCORED_TOP_K, Setting

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from loadgen.request import Request

NAME = "vllm"
PATHS: Mapping[str, str] = {**METHODS, "scores": "completions"}
SETTINGS_PAGE: str | None = "metrics"
METRICS: Mapping[str, Metric] = {
    "running": Metric(("vllm:num_requests_running",), "sum"),
    "waiting": Metric(("vllm:num_requests_waiting",), "sum"),
    # A share of one engine's cache: the fullest engine is the one that preempts. The second name is vLLM 0's.
    "kv_usage": Metric(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), "max"),
    "preemptions": Metric(("vllm:num_preemptions_total",), "sum"),
    "prompt_tokens": Metric(("vllm:prompt_tokens_total",), "sum"),
    "generation_tokens": Metric(("vllm:generation_tokens_total",), "sum"),
    "drafts": Metric(("vllm:spec_decode_num_drafts_total",), "sum"),
    "draft_tokens": Metric(("vllm:spec_decode_num_draft_tokens_total",), "sum"),
    "accepted_tokens": Metric(("vllm:spec_decode_num_accepted_tokens_total",), "sum"),
    "cached_tokens": Metric(("vllm:prompt_tokens_cached_total",), "sum"),
}

_SETTINGS: Mapping[Setting, str] = {
    "prefix cache": "enable_prefix_caching",
    "KV cache (tokens)": "kv_cache_size_tokens",
    "KV cache block size": "block_size",
    "KV cache type": "cache_dtype",
    "share of the memory": "gpu_memory_utilization",
}


def body(request: "Request", model: str) -> dict[str, Any]:
    asked = base_body(request, model) | sampling(request) | {"return_token_ids": True}
    if asked.get("logprobs") is not None:
        # By their text, two tokens that read alike collapse into one alternative.
        asked["return_tokens_as_token_ids"] = True
    return asked


def reader() -> Callable[[dict[str, Any]], Reading]:
    return read


def read(event: dict[str, Any]) -> Reading:
    choice = first_choice(event)
    if choice is None:
        reading, metrics = read_choice(event, choice), event.get("metrics")
        figures = metrics.get("speculative_decoding") if metrics else None
        return reading._replace(speculation=figures) if isinstance(figures, dict) else reading
    # Completions put the prompt's ids into the choice, chat into the event's root.
    prompt_ids = choice.get("prompt_token_ids") or event.get("prompt_token_ids")
    return read_choice(event, choice, choice.get("token_ids"), prompt_ids)


def score_body(token_ids: list[int], model: str) -> dict[str, Any] | None:
    """A completion of one greedy token, for the log-probabilities of its prompt; temperature does not enter them."""
    return {
        "model": model,
        "prompt": token_ids,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": SCORED_TOP_K,
        "return_token_ids": True,
        "add_special_tokens": False,
        "stream": False,
    }


def read_scores(answer: dict[str, Any], first: int = 0) -> list[Scored | None]:
    """The first position is None: nothing comes before it.

    The actual token is found by its own id, since it is not marked among the entries and may stand anywhere.
    """
    choice = answer["choices"][0]
    positions, ids = choice.get("prompt_logprobs"), choice.get("prompt_token_ids")
    if positions is None or ids is None or len(positions) != len(ids):
        raise ValueError("The answer holds no prompt_logprobs with their prompt_token_ids.")
    asked = [_scored(token_id, entries) for token_id, entries in zip(ids[first:], positions[first:], strict=True)]
    return [*[None] * min(first, len(ids)), *asked]


def _scored(token_id: int, entries: dict[str, dict[str, Any]] | None) -> Scored | None:
    own = entries.get(str(token_id)) if entries else None
    if entries is None or own is None:
        return None
    top = [(int(key), as_scored_logprob(entry["logprob"])) for key, entry in entries.items()]
    return Scored(token_id, as_scored_logprob(own["logprob"]), top)


def next_body(token_ids: list[int], model: str) -> dict[str, Any] | None:
    """Sampled as the law is meant, for servers that tell log-probabilities as they are after sampling settings."""
    return {
        "model": model,
        "prompt": token_ids,
        "max_tokens": 1,
        "temperature": 1,
        "top_p": 1,
        "top_k": -1,
        "min_p": 0,
        "logprobs": SCORED_TOP_K,
        "return_tokens_as_token_ids": True,
        "add_special_tokens": False,
        "stream": False,
    }


def read_next(answer: dict[str, Any]) -> list[tuple[int, float]]:
    (top,) = answer["choices"][0]["logprobs"]["top_logprobs"]
    return listed((as_token_id(name), value) for name, value in top.items())


def settings(page: str) -> dict[Setting, str]:
    """The labels of its cache's configuration; of several engines, the first one's."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = "\n".join(line for line in page.split("\n") if line.startswith("vllm:cache_config_info"))
    samples = [sample for family in text_string_to_metric_families(lines + "\n") for sample in family.samples]
    labels = samples[0].labels if samples else {}
    return {ours: labels[theirs] for ours, theirs in _SETTINGS.items() if labels.get(theirs, "None") != "None"}


def capacity(families: "Iterable[Family]") -> int | None:
    """Tokens over all engines. Blocks times their size would be wrong for models of mixed attention."""
    sizes = [
        sample.labels["kv_cache_size_tokens"]
        for family in families
        for sample in family.samples
        if sample.name == "vllm:cache_config_info" and sample.labels.get("kv_cache_size_tokens", "").isdecimal()
    ]
    return sum(int(size) for size in sizes) or None
