"""GET /metrics: the engine's counters under vLLM's names and labels, and a few of its own under sim:."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servers.sim.core import Engine
from servers.sim.settings import BLOCK_TOKENS

_FINISH_REASONS = ("stop", "length", "abort")


class Exposition(Collector):
    """Reads the engine each time it is asked: no second count to keep in step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._labels = {"model_name": engine.settings.model, "engine": "0"}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        engine, counters = self._engine, self._engine.counters
        yield self._gauge("vllm:num_requests_running", "Requests in the running batch.", len(engine.running))
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait for a place.", len(engine.waiting))
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", engine.kv_usage)
        yield self._counter("vllm:num_preemptions", "Requests put back for want of memory.", counters.preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens computed, once each.", counters.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens sampled.", counters.generation_tokens)
        yield self._finished()
        yield self._cache_config()
        yield from self._speculation()
        yield self._counter("sim:steps", "Steps of the engine.", counters.steps)
        yield self._counter("sim:late_steps", "Steps delivered later than modelled.", counters.late_steps)
        yield self._counter("sim:modelled_seconds", "Modelled time spent in steps.", counters.modelled_ns / 1e9)

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, about, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, about: str, value: float) -> Metric:
        family = CounterMetricFamily(name, about, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _finished(self) -> Metric:
        labels = [*self._labels, "finished_reason"]
        family = CounterMetricFamily("vllm:request_success", "Requests that ended, by reason.", labels=labels)
        for reason in _FINISH_REASONS:
            family.add_metric([*self._labels.values(), reason], self._engine.counters.finished[reason])
        return family

    def _cache_config(self) -> Metric:
        blocks = self._engine.total_blocks
        facts = {
            "block_size": str(BLOCK_TOKENS),
            "num_gpu_blocks": str(blocks),
            "kv_cache_size_tokens": str(blocks * BLOCK_TOKENS),
            "enable_prefix_caching": "False",
            "engine": "0",
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache, in labels.", labels=list(facts))
        family.add_metric(list(facts.values()), 1)
        return family

    def _speculation(self) -> Iterator[Metric]:
        """Absent where the engine does not speculate, as vLLM's are."""
        counters, drafted = self._engine.counters, self._engine.settings.speculative
        if not drafted:
            return
        name = "vllm:spec_decode_num_"
        yield self._counter(f"{name}drafts", "Drafts: one a sequence and step.", counters.drafts)
        yield self._counter(f"{name}draft_tokens", "Drafted tokens.", counters.draft_tokens)
        yield self._counter(f"{name}accepted_tokens", "Drafted tokens that became output.", counters.accepted_tokens)
        labels = [*self._labels, "position"]
        family = CounterMetricFamily(
            f"{name}accepted_tokens_per_pos", "The same, by place in the draft.", labels=labels
        )
        for position in range(drafted):
            family.add_metric([*self._labels.values(), str(position)], counters.accepted_at[position])
        yield family
