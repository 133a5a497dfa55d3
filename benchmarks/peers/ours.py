"""`loadgate run`, from this checkout."""

import json
import sys
from itertools import pairwise
from pathlib import Path

from peers import Command, Load, Reply

PYTHON = "LOADGATE_PEER_OURS"
DISTRIBUTIONS = ("loadgate",)

_ROOT = Path(__file__).parents[2]
_WARMUP = 8
_PROFILE = """\
lanes = {lanes}
requests_per_lane = {requests_per_lane}
start_spread_ms = {spread_ms}
endpoint = "completions"
max_tokens = {tokens}
[prompts]
source = "jsonl"
path = "prompts.jsonl"
[warmup]
requests = {warmup}
"""


def command(python: str | None, load: Load) -> Command:
    profile = load.folder / "ruler.toml"
    spread_ms = 1000 / load.starts_per_s if load.paced else 0.0
    profile.write_text(
        _PROFILE.format(
            lanes=load.lanes,
            requests_per_lane=load.requests_per_lane,
            spread_ms=spread_ms,
            tokens=load.tokens,
            warmup=_WARMUP,
        )
    )
    prompts = (f"{index} " + "word " * 15 for index in range(load.requests + _WARMUP))
    (load.folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    words = [python or sys.executable, "-m", "loadgen", "run", load.url, "--profile", str(profile)]
    return Command([*words, "--dialect", "vllm", "--out", str(load.folder / "run")], {"PYTHONPATH": str(_ROOT)})


def read(load: Load) -> list[Reply]:
    sys.path.insert(0, str(_ROOT))
    from loadgen.record import Run

    return [
        Reply(
            ttft_ms=(record.chunk_ns[0] - record.sent_ns) / 1e6,
            id=record.id,
            gaps_ms=[(after - before) / 1e6 for before, after in pairwise(record.chunk_ns)],
            chunk_ns=record.chunk_ns,
            shared=sum(record.chunk_ambiguous),
        )
        for record in Run.open(load.folder / "run").records()
        if record.phase == "timed" and record.failure is None and record.sent_ns is not None
    ]
