"""aiperf. It takes a tokenizer by a hub's name alone, so it is shown a hub's cache that holds ours."""

import json
from pathlib import Path

from peers import OFFLINE, PROMPT_TOKENS, Command, Load, Reply

PYTHON = "LOADGATE_PEER_AIPERF"
DISTRIBUTIONS = ("aiperf",)

_REVISION = "0" * 40


def command(python: str, load: Load) -> Command:
    options = {
        "model": "truth",
        "tokenizer": "local/tokenizer",
        "url": load.url,
        "endpoint-type": "completions",
        "concurrency": str(load.lanes),
        "request-count": str(load.requests),
        "num-dataset-entries": str(load.requests),
        "isl": str(PROMPT_TOKENS),
        "isl-stddev": "0",
        "osl": str(load.tokens),
        "osl-stddev": "0",
        "output-artifact-dir": str(load.folder / "result"),
        "export-level": "records",
        "ui": "none",
    }
    if load.paced:
        options |= {"request-rate": str(load.starts_per_s), "request-rate-mode": "constant"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    home = _hub_cache(load.folder / "hub", load.tokenizer)
    start = [python, "-m", "aiperf", "profile", *words, "--streaming", "--use-legacy-max-tokens"]
    return Command(start, {**OFFLINE, "HF_HOME": str(home)})


def _hub_cache(home: Path, tokenizer: Path | None) -> Path:
    model = home / "hub" / "models--local--tokenizer"
    for folder in ("refs", "snapshots"):
        (model / folder).mkdir(parents=True)
    (model / "refs" / "main").write_text(_REVISION)
    if tokenizer is not None:
        (model / "snapshots" / _REVISION).symlink_to(tokenizer.resolve())
    return home


def read(load: Load) -> list[Reply]:
    lines = (load.folder / "result" / "profile_export.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if not record.get("error")]
    return [
        Reply(
            ttft_ms=record["metrics"]["time_to_first_token"]["value"],
            id=record["metadata"]["x_request_id"],
            gaps_ms=record["metrics"].get("inter_chunk_latency", {}).get("value"),
        )
        for record in records
    ]
