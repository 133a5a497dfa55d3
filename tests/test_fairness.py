"""Two servers that say that they are set up differently: said before anything is driven, and in the verdict."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from gates import fairness, plan, reading, verdict
from loadgen import server_settings
from loadgen.dialects import llamacpp, sglang, vllm
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint
from loadgen.record import Run, Setting
from loadgen.transport import SocketTransport
from playback import answer, playing

VLLM = """# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="False",engine="0",\
kv_cache_size_tokens="98304",gpu_memory_utilization="0.9",num_gpu_blocks_override="None"} 1.0
vllm:num_requests_running{engine="0"} 3
""".replace("\\\n", "")

TOLD: dict[Setting, str] = {
    "prefix cache": "False",
    "KV cache (tokens)": "98304",
    "KV cache block size": "16",
    "KV cache type": "auto",
    "share of the memory": "0.9",
}


def test_vllm_tells_by_its_metrics() -> None:
    assert vllm.settings(VLLM) == TOLD
    assert vllm.settings("# nothing\n") == {}


def test_sglang_tells_by_its_arguments() -> None:
    """The radix cache is told by its absence."""
    page = {"disable_radix_cache": True, "context_length": None, "page_size": 1, "mem_fraction_static": 0.85}
    told = {"prefix cache": "False", "KV cache block size": "1", "share of the memory": "0.85"}
    assert sglang.settings(json.dumps(page)) == told


def test_llamacpp_tells_by_its_properties() -> None:
    page = {"total_slots": 4, "default_generation_settings": {"n_ctx": 4096}}
    told = {"most sequences at once": "4", "longest sequence": "4096"}
    assert llamacpp.settings(json.dumps(page)) == told


MODELS = answer(200, orjson.dumps({"data": [{"id": "tide-1", "owned_by": "vllm", "max_model_len": 64}]}))


@pytest.mark.parametrize(
    ("page", "told"),
    [
        (answer(200, VLLM.encode()), TOLD),
        (answer(404, b""), {}),
        (answer(200, b"<html>"), {}),
        (answer(200, b'vllm:cache_config_info{a="b'), {}),
    ],
    ids=["metrics", "none", "a page of another kind", "broken off"],
)
async def test_a_server_that_does_not_tell_is_no_error(page: Any, told: dict[Setting, str]) -> None:
    transport = SocketTransport()
    async with playing(MODELS, answer(404, b"{}"), page) as server:
        opened = await open_endpoint(Endpoint(url=server.url, label="stock"), transport)
        assert await server_settings.settings(opened) == {"longest sequence": "64"} | told
        await opened.close()


def test_what_both_tell_and_tell_differently_is_named() -> None:
    """Numbers from free memory are never quite equal; what one side alone tells is no difference."""
    assert fairness.differences(TOLD, TOLD | {"KV cache (tokens)": "98000"}) == []
    assert fairness.differences(TOLD, {"longest sequence": "64"}) == []
    found = fairness.differences(TOLD, TOLD | {"prefix cache": "True", "KV cache (tokens)": "60000"})
    assert [sentence.partition(": ")[2].partition(":")[0] for sentence in found] == [
        "prefix cache is False on stock and True on the candidate",
        "KV cache (tokens) is 98304 on stock and 60000 on the candidate",
    ]


def test_the_verdict_says_so(tmp_path: Path) -> None:
    """By what run.json holds of the two."""
    from test_simulated import brief, compared

    run, _ = compared(tmp_path / "run", brief("team", requests=16), passes=1)
    asked = run.asked
    assert asked["endpoints"]["stock"]["settings"]["prefix cache"] == "False"
    asked["endpoints"]["candidate"]["settings"]["prefix cache"] = "True"
    (run.path / "run.json").write_text(json.dumps(asked))
    found = verdict.judge(reading.load(Run.open(run.path)), plan.load("strict"))
    assert any(sentence.startswith("The servers are set up differently: prefix cache") for sentence in found.warnings)
