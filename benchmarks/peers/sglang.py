"""sglang's Rust client. It takes as many threads as it may use cores; its paced starts are a Poisson process."""

import json

from peers import OFFLINE, PROMPT_TOKENS, Command, Load, Reply

PYTHON = "LOADGATE_PEER_SGLANG"
DISTRIBUTIONS = ("sglang",)


def command(python: str, load: Load) -> Command:
    options = {
        "backend": "vllm",
        "base-url": load.url,
        "model": "truth",
        "tokenizer": str(load.tokenizer),
        "dataset-name": "random-ids",
        "random-input-len": str(PROMPT_TOKENS),
        "random-output-len": str(load.tokens),
        "random-range-ratio": "1",
        "num-prompts": str(load.requests),
        "max-concurrency": str(load.lanes),
        "warmup-requests": "0",
        "output-file": str(load.folder / "result.jsonl"),
    }
    if load.paced:
        options["request-rate"] = str(load.starts_per_s)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    flags = ["--output-details", "--disable-tqdm", "--disable-retokenize"]
    return Command([python, "-m", "sglang.benchmark.rust_client", *words, *flags], OFFLINE)


def read(load: Load) -> list[Reply]:
    result = json.loads((load.folder / "result.jsonl").read_text().splitlines()[-1])
    columns = zip(result["ttfts"], result["itls"], result["errors"], strict=True)
    return [
        Reply(ttft_ms=ttft_s * 1e3, gaps_ms=[gap_s * 1e3 for gap_s in gaps_s])
        for ttft_s, gaps_s, error in columns
        if not error
    ]
