"""guidellm with streams = lanes. It keeps first and last chunk of a request, so there are no gaps between chunks."""

import json

from peers import OFFLINE, PROMPT_TOKENS, Command, Load, Reply

PYTHON = "LOADGATE_PEER_GUIDELLM"
DISTRIBUTIONS = ("guidellm",)


def command(python: str, load: Load) -> Command:
    # HTTP/2 is for TLS alone, and its library is not always there.
    target = f"kind=openai_http,target={load.url},model=truth,request_format=/v1/completions,http2=false"
    rampup_s = load.lanes / load.starts_per_s if load.paced else 0
    options = {
        "backend": target,
        "profile": f"kind=concurrent,streams={load.lanes},rampup_duration={rampup_s}",
        "constraint": f"kind=max_requests,count={load.requests}",
        "tokenizer": f"kind=huggingface_auto,model={load.tokenizer}",
        "data": f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
        "output": f"kind=json,path={load.folder / 'result.json'}",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return Command([python, "-m", "guidellm", "run", *words, "--disable-console"], OFFLINE)


def read(load: Load) -> list[Reply]:
    result = json.loads((load.folder / "result.json").read_text())
    requests = sorted(result["benchmarks"][0]["requests"]["successful"], key=lambda one: one["request_start_time"])
    return [Reply(ttft_ms=request["time_to_first_token_ms"]) for request in requests]
