import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from servers.sim.tokenizer import SAMPLED, decode, encode

LENGTH = 2048


@contextmanager
def served(**settings: Any) -> Iterator[httpx.Client]:
    """A client of an engine in a process of its own, ten times as fast as it would be."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {"step_ms": 1, **settings}.items()]
    process = subprocess.Popen([sys.executable, "-m", "servers.sim", "--port", str(port), *flags])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            _wait_until_healthy(client, process)
            yield client
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_healthy(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the engine never answered")


@pytest.fixture(scope="module")
def stock() -> Iterator[httpx.Client]:
    with served() as client:
        yield client


@pytest.fixture(scope="module")
def speculative() -> Iterator[httpx.Client]:
    with served(speculative=4, api_key="secret", model="fast") as client:
        client.headers["Authorization"] = "Bearer secret"
        yield client


def completion(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"model": "sim", "prompt": "the sun", **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def events(client: httpx.Client, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
    """The JSON events of a stream, whose last event is the end mark."""
    answer = client.post(path, json={"stream": True, "stream_options": {"include_usage": True}, **body})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *parts, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [orjson.loads(part.removeprefix("data: ")) for part in parts]


def metrics(client: httpx.Client) -> dict[str, float]:
    """Values by sample name, labels left out but for reasons and positions."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    return {
        sample.name + "".join(sample.labels.get(key, "") for key in ("finished_reason", "position")): sample.value
        for sample in samples
    }


def test_a_completion_has_every_field_of_vllm(stock: httpx.Client) -> None:
    """Text, ids and usage agree, and the fields are vLLM's."""
    answer = stock.post(
        "/v1/completions",
        json={"model": "sim", "prompt": "the sun", "max_tokens": 5, "ignore_eos": True, "return_token_ids": True},
        headers={"X-Request-Id": "abc"},
    ).json()
    choice = answer["choices"][0]
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    assert (answer["id"], answer["object"], answer["model"]) == ("cmpl-abc", "text_completion", "sim")
    assert choice["text"] == decode(choice["token_ids"])
    assert choice["prompt_token_ids"] == encode("the sun")
    assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == ("length", None, None)
    prompt = len(encode("the sun"))
    assert answer["usage"] == {"prompt_tokens": prompt, "total_tokens": prompt + 5, "completion_tokens": 5}


def test_a_stream_has_vllms_chunks(stock: httpx.Client) -> None:
    """Prompt ids in the first chunk alone, the finish reason in the last, then usage with no choice."""
    *chunks, usage = events(stock, prompt=[5, 6, 7], max_tokens=4, ignore_eos=True, return_token_ids=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [("prompt_token_ids" in choice, choice["finish_reason"]) for choice in choices] == [
        (True, None),
        (False, None),
        (False, None),
        (False, "length"),
    ]
    ids = [token for choice in choices for token in choice["token_ids"]]
    assert "".join(choice["text"] for choice in choices) == decode(ids)
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": len(ids)}


def test_a_stream_without_options_says_no_usage(stock: httpx.Client) -> None:
    """Usage comes where it is asked for; token ids too."""
    chunks = events(stock, prompt="the sun", max_tokens=2, ignore_eos=True, stream_options=None)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]
    assert "token_ids" not in chunks[0]["choices"][0]


def test_a_speculating_engine_sends_what_it_accepted_in_one_chunk(speculative: httpx.Client) -> None:
    """Chunks of one to five tokens; ids, usage and the server's counters agree."""
    before = metrics(speculative)
    *chunks, usage = events(speculative, prompt="the sun", max_tokens=200, ignore_eos=True, return_token_ids=True)
    sizes = [len(chunk["choices"][0]["token_ids"]) for chunk in chunks]
    assert sum(sizes) == 200 == usage["usage"]["completion_tokens"]
    assert (sizes[0], min(sizes) >= 1, max(sizes)) == (1, True, 5)
    moved = {name: value - before[name] for name, value in metrics(speculative).items()}
    assert moved["vllm:generation_tokens_total"] == 200
    assert moved["vllm:spec_decode_num_accepted_tokens_total"] == sum(size - 1 for size in sizes)
    assert moved["vllm:spec_decode_num_accepted_tokens_per_pos_total3"] == sum(size == 5 for size in sizes)
    assert moved["vllm:spec_decode_num_drafts_total"] in (len(sizes) - 1, len(sizes) - 2)


def test_an_end_of_sequence_is_an_id_without_text(stock: httpx.Client) -> None:
    """token_ids end with id 0, usage counts it, the text does not show it."""
    for seed in range(20):
        answer = completion(stock, max_tokens=1000, seed=seed, return_token_ids=True)
        choice = answer["choices"][0]
        assert (choice["finish_reason"], choice["token_ids"][-1]) == ("stop", 0)
        assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])
        assert choice["text"] == decode(choice["token_ids"][:-1])


def test_prompt_logprobs_agree_with_the_streamed_ones(stock: httpx.Client) -> None:
    """Scoring a reply as a prompt gives the log-probabilities that it was streamed with, alternatives included."""
    *chunks, _ = events(
        stock, prompt="the sun", max_tokens=30, ignore_eos=True, logprobs=3,
        return_token_ids=True, return_tokens_as_token_ids=True, temperature=0.7, top_p=0.9,
    )  # fmt: skip
    choices = [chunk["choices"][0] for chunk in chunks]
    reply = [token for choice in choices for token in choice["token_ids"]]
    prompt = choices[0]["prompt_token_ids"]
    scored = completion(stock, prompt=prompt + reply, max_tokens=1, prompt_logprobs=20)["choices"][0]["prompt_logprobs"]
    assert scored[0] is None
    assert len(scored) == len(prompt + reply)
    own = [entry[str(token)] for token, entry in zip(reply, scored[len(prompt) :], strict=True)]
    assert [value for choice in choices for value in choice["logprobs"]["token_logprobs"]] == [
        entry["logprob"] for entry in own
    ]
    for choice, entry in zip(choices, scored[len(prompt) :], strict=True):
        streamed = choice["logprobs"]["top_logprobs"][0]
        assert len(entry) in (20, 21)
        assert {f"token_id:{token}": fields["logprob"] for token, fields in entry.items()}.items() >= streamed.items()
        assert [fields["rank"] for fields in entry.values()][1:] == sorted(
            fields["rank"] for fields in list(entry.values())[1:]
        )


def test_logprobs_are_raw(stock: httpx.Client) -> None:
    """Greedy replies report the model's own law, not certainty; the text offsets count what was shown."""
    logprobs = completion(stock, prompt="go", max_tokens=40, temperature=0, logprobs=1)["choices"][0]["logprobs"]
    assert min(logprobs["token_logprobs"]) < -0.1
    assert all(
        top == {token: value}
        for token, value, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        )
    )
    widths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [sum(widths[:i]) for i in range(len(widths))]


def test_echo_scores_a_prompt_without_a_reply(stock: httpx.Client) -> None:
    """echo, logprobs and max_tokens 0: the prompt's tokens, the first without a log-probability."""
    answer = completion(stock, prompt=[5, 6, 400], max_tokens=0, echo=True, logprobs=2)
    choice = answer["choices"][0]
    assert choice["text"] == decode([5, 6, 400])
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["token_logprobs"][2] == -9999.0  # a byte is never sampled
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}
    streamed, _ = events(stock, prompt=[5, 6, 400], max_tokens=0, echo=True, logprobs=2)
    assert streamed["choices"][0]["logprobs"] == choice["logprobs"]


def test_echo_in_a_stream_puts_the_prompt_before_the_first_token(stock: httpx.Client) -> None:
    """As vLLM does: one chunk holds both."""
    *chunks, _ = events(stock, prompt="the sun", echo=True, max_tokens=3, ignore_eos=True, return_token_ids=True)
    ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "the sun" + decode(ids)


def test_chat_streams_the_role_first(stock: httpx.Client) -> None:
    """A chunk with the role and no token, then content, then usage; prompt ids at the root of the first."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}
    opening, *chunks, usage = events(
        stock, "/v1/chat/completions", **body, return_token_ids=True, logprobs=True, top_logprobs=2
    )
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert opening["prompt_token_ids"] == encode("<|user|>\nhi\n<|assistant|>\n")
    assert {chunk["object"] for chunk in (opening, *chunks, usage)} == {"chat.completion.chunk"}
    ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == decode(ids)
    entries = [entry for chunk in chunks for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2]
    assert [bytes(entry["bytes"]).decode() for entry in entries] == [entry["token"] for entry in entries]
    assert usage["usage"]["completion_tokens"] == len(ids) == 3


def test_chat_answers_in_one_piece_too(stock: httpx.Client) -> None:
    """The message carries the text; max_completion_tokens counts like max_tokens."""
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_completion_tokens": 4}
    answer = stock.post("/v1/chat/completions", json={**body, "ignore_eos": True, "return_token_ids": True}).json()
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": decode(choice["token_ids"])}
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["prompt_token_ids"] == encode("<|user|>\nhi\n<|assistant|>\n")


def test_a_stop_string_is_named(stock: httpx.Client) -> None:
    """finish_reason stop, stop_reason the string, the text cut before it, in a stream as in one piece."""
    text = completion(stock, max_tokens=40, ignore_eos=True, seed=3)["choices"][0]["text"]
    stop = text[20:24]
    choice = completion(stock, max_tokens=40, ignore_eos=True, seed=3, stop=[stop])["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (text[: text.index(stop)], stop)
    *chunks, _ = events(stock, prompt="the sun", max_tokens=40, ignore_eos=True, seed=3, stop=stop)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]


TOO_LONG = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains 3000 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=3000)"
)
REFUSED = [
    ({"prompt": [1] * 3000}, 400, "input_tokens", TOO_LONG),
    ({"prompt": [1] * LENGTH}, 400, "input_tokens", "maximum context length"),
    ({"prompt": "a", "model": "x"}, 404, "model", "The model `x` does not exist. Valid aliases: sim."),
    (
        {"prompt": "a", "logprobs": 50},
        400,
        "logprobs",
        "Requested sample logprobs of 50, which is greater than max allowed: 20 (parameter=logprobs, value=50)",
    ),
    ({"prompt": "a", "prompt_logprobs": 21}, 400, "prompt_logprobs", "greater than max allowed: 20"),
    ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs", "not available when `stream"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "at least 1"),
    ({"prompt": "a", "min_tokens": 20}, 400, "min_tokens", "less than or equal to max_tokens=16"),
    ({"prompt": "a", "temperature": -0.1}, 400, "temperature", "greater than or equal to 0"),
    ({"prompt": "a", "temperature": "hot"}, 400, "temperature", "valid number"),
    ({"prompt": "a", "top_p": 0}, 400, "top_p", "greater than 0"),
    ({"prompt": "a", "n": 2}, 400, "n", "n must be 1"),
    ({"prompt": "a", "stop": ""}, 400, "stop", "empty"),
    ({"prompt": [9999]}, 400, "prompt", "out of vocabulary"),
    ({"prompt": []}, 400, "prompt", "cannot be empty"),
    ({"prompt": ["a", "b"]}, 400, "prompt", "one prompt"),
    ({}, 400, "prompt", "cannot be empty"),
]


@pytest.mark.parametrize(("body", "status", "param", "message"), REFUSED, ids=[row[3][:30] for row in REFUSED])
def test_bad_requests_get_vllms_errors(
    stock: httpx.Client, body: dict[str, Any], status: int, param: str, message: str
) -> None:
    """The status, and an error object with message, type, param and code."""
    answer = stock.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, param)
    assert error["type"] == ("NotFoundError" if status == 404 else "BadRequestError")
    assert message in error["message"]


def test_what_is_no_request_is_refused(stock: httpx.Client) -> None:
    """Broken JSON, a chat without messages, a path and a method that do not exist."""
    assert stock.post("/v1/completions", content=b'{"prompt": ').status_code == 400
    assert stock.post("/v1/completions", content=b"[1]").json()["error"]["type"] == "BadRequestError"
    assert stock.post("/v1/chat/completions", json={}).json()["error"]["param"] == "messages"
    assert stock.get("/v2/models").status_code == 404
    assert stock.get("/v1/completions").status_code == 405


def test_room_for_the_reply_is_cut_in_silence(stock: httpx.Client) -> None:
    """max_tokens beyond the context is cut to what is left, as vLLM does."""
    answer = completion(stock, prompt=[1] * (LENGTH - 3), max_tokens=100, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_key_is_asked_where_one_is_set(speculative: httpx.Client) -> None:
    """A bare 401 on /v1 paths without the key; the health check needs none."""
    answer = speculative.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
    assert speculative.get("/health", headers={"Authorization": ""}).status_code == 200
    assert speculative.get("/v1/models").json()["data"][0]["id"] == "fast"


def test_discovery(stock: httpx.Client) -> None:
    """The model with its context length, the version, and the tokenizer both ways."""
    model = stock.get("/v1/models").json()["data"][0]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("sim", "loadgate-sim", LENGTH)
    assert stock.get("/version").json() == {"version": "loadgate-sim-1"}
    tokens = stock.post("/tokenize", json={"model": "sim", "prompt": "the sün"}).json()
    assert tokens == {"count": len(tokens["tokens"]), "max_model_len": LENGTH, "tokens": encode("the sün")} | {
        "token_strs": None
    }
    assert stock.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "the sün"}
    chat = stock.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert decode(chat["tokens"]) == "<|user|>\nhi\n<|assistant|>\n"


def test_metrics_have_vllms_names(stock: httpx.Client, speculative: httpx.Client) -> None:
    """They parse; the cache's capacity stands in labels; speculation's counters are absent without speculation."""
    families = {family.name: family for family in text_string_to_metric_families(stock.get("/metrics").text)}
    config = families["vllm:cache_config_info"].samples[0].labels
    assert (config["kv_cache_size_tokens"], config["block_size"], config["num_gpu_blocks"]) == ("8192", "16", "512")
    assert families["vllm:num_requests_running"].samples[0].labels == {"model_name": "sim", "engine": "0"}
    assert not any("spec_decode" in name for name in families)
    assert metrics(speculative)["vllm:spec_decode_num_drafts_total"] >= 0
    before = metrics(stock)
    completion(stock, prompt=[1, 2, 3], max_tokens=4, ignore_eos=True)
    moved = {name: value - before[name] for name, value in metrics(stock).items()}
    assert moved["vllm:prompt_tokens_total"] == 3
    assert moved["vllm:generation_tokens_total"] == 4 == moved["sim:steps_total"]
    assert moved["vllm:request_success_totallength"] == 1
    assert moved["sim:modelled_seconds_total"] == pytest.approx(4 * 1.1e-3 + 3 * 0.05e-3 + 3 * 0.02e-3)


def test_the_step_log_says_what_each_step_cost(stock: httpx.Client) -> None:
    """Every step's modelled span is the published coefficients times what it computed."""
    completion(stock, max_tokens=10)
    log = stock.get("/sim/steps").json()
    cost = log["cost"]
    assert log["steps_total"] >= len(log["steps"]) > 0
    for step in log["steps"]:
        expected = (
            cost["step_ms"]
            + cost["sequence_ms"] * step["sequences"]
            + cost["token_ms"] * step["tokens"]
            + cost["prefill_token_ms"] * step["prefill_tokens"]
            + cost["draft_ms"] * step["draft_positions"]
        )
        assert (step["end_ns"] - step["start_ns"]) / 1e6 == pytest.approx(expected)


def _until(client: httpx.Client, name: str, value: float) -> dict[str, float]:
    for _ in range(200):
        if (seen := metrics(client))[name] == value:
            return seen
        time.sleep(0.02)
    raise AssertionError(f"{name} never became {value}")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_memory(stock: httpx.Client, stream: bool) -> None:
    """The request is aborted, streamed or not: nothing runs any more, and the cache is empty."""
    before = metrics(stock)["vllm:request_success_totalabort"]
    body = {"prompt": "the sun", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    host, port = stock.base_url.host, stock.base_url.port
    payload = orjson.dumps(body)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
    with socket.create_connection((host, port)) as raw:
        raw.sendall(head.encode() + payload)
        _until(stock, "vllm:num_requests_running", 1)
    seen = _until(stock, "vllm:num_requests_running", 0)
    assert seen["vllm:kv_cache_usage_perc"] == 0
    assert seen["vllm:request_success_totalabort"] == before + 1


def test_sampling_settings_reach_the_engine(stock: httpx.Client) -> None:
    """top_k 1 and temperature 0 give one reply; a seed repeats one; -1 and 0 turn top_k off."""
    greedy = completion(stock, max_tokens=20, temperature=0)["choices"][0]["text"]
    assert completion(stock, max_tokens=20, top_k=1)["choices"][0]["text"] == greedy
    seeded = [completion(stock, max_tokens=20, seed=1, top_k=k)["choices"][0]["text"] for k in (-1, 0, SAMPLED)]
    assert len(set(seeded)) == 1


def test_two_servers_share_a_model_and_no_randomness(stock: httpx.Client, speculative: httpx.Client) -> None:
    """The tables depend on model_seed alone; without a sampling seed two servers draw differently."""
    greedy = [
        client.post("/v1/completions", json={"prompt": "the sun", "temperature": 0}).json()["choices"][0]["text"]
        for client in (stock, speculative)
    ]
    sampled = [
        client.post("/v1/completions", json={"prompt": "the sun", "max_tokens": 200, "ignore_eos": True}).json()
        for client in (stock, speculative)
    ]
    assert greedy[0] == greedy[1]
    assert sampled[0]["choices"][0]["text"] != sampled[1]["choices"][0]["text"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--step-ms", "-1"], "--step-ms: Input should be greater than or equal to 0"),
        (["--speculative", "many"], "--speculative: Input should be a valid integer"),
        (["--no-such"], "unrecognized arguments: --no-such"),
        (["--max-model-len", "9000"], "could never run"),
    ],
)
def test_a_bad_setting_is_named(flags: list[str], says: str) -> None:
    """Exit 2, the flag and what is allowed."""
    done = subprocess.run(
        [sys.executable, "-m", "servers.sim", *flags], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert says in done.stderr
