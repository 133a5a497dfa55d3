"""Run by the Python of a vLLM environment: does this vLLM accept these commands?

    python vllm_arguments.py MODEL < commands.json

commands.json: name → arguments after the program. MODEL: a folder with a small model, in place of the ones named.
Writes name → what was refused, as JSON: by the parser of arguments, or by the configuration of speculation, which needs
a model's config and no weights; null where nothing was.
"""

import json
import sys
from typing import Any


def refused(argv: list[str], model: str) -> str | None:
    from vllm.config import ModelConfig, ParallelConfig
    from vllm.config.speculative import SpeculativeConfig
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
        validate_parsed_serve_args(parsed)
    except SystemExit:
        return "arguments"
    if parsed.speculative_config is None:
        return None
    config: dict[str, Any] = dict(parsed.speculative_config)
    # The drafts that are named are not here: a small model stands for the draft, of which the configuration reads.
    config |= {"model": model} if "model" in config else {}
    config.pop("revision", None)
    try:
        target = ModelConfig(model=model, max_model_len=256, dtype="float32")
        SpeculativeConfig(**config, target_model_config=target, target_parallel_config=ParallelConfig())
    except (ValueError, TypeError, NotImplementedError, AttributeError, AssertionError, OSError, ImportError) as error:
        return f"speculation: {' '.join(str(error).split())[:300]}"
    return None


if __name__ == "__main__":
    commands = json.load(sys.stdin)
    answer = {name: refused(argv, sys.argv[1]) for name, argv in commands.items()}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
