"""Run by the Python of a vLLM environment: does this vLLM accept these commands?

    python vllm_arguments.py < commands.json

commands.json: name → {"argv": arguments after the program, "env": names of variables}. Writes name → what was refused,
as JSON; null where nothing was.

Asked are the parser of arguments, the table of variables, and the configuration of speculation with its schedule, which
need a model's config.json and no weights. The models that are named are not here, so small ones stand in, of the
architecture that the method asks of its drafter: of another one, vLLM takes the drafter for something else, and accepts
it (a plain Qwen3 for dspark is read as DeepSeek-V4's).
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGET = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32_768,
    "eos_token_id": 0,
}
# Qwen3.5 itself cannot be asked: vLLM inspects its code, which needs torchvision, and that CPU environments lack.
# Qwen3-Next is the text model before it, of the same kinds of layers and with one layer for multi-token prediction.
WITH_MTP = TARGET | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_nextn_predict_layers": 1,
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
LAYERS_READ = {"mask_token_id": 1, "target_layer_ids": [0, 1]}
DRAFTERS = {
    "draft_model": TARGET,
    "eagle3": TARGET | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1},
    "dflash": TARGET | {"architectures": ["DFlashDraftModel"], "block_size": 16, "dflash_config": LAYERS_READ},
    "dspark": TARGET | {"architectures": ["Qwen3DSparkModel"], "block_size": 7, **LAYERS_READ},
}


def written(config: dict[str, Any], into: Path) -> str:
    folder = Path(tempfile.mkdtemp(dir=into))
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def refused(argv: list[str], env: list[str], into: Path) -> str | None:
    from vllm import envs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    unknown = [name for name in env if name.startswith("VLLM_") and name not in envs.environment_variables]
    if unknown:
        return f"variables: {unknown}"
    try:
        parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
        validate_parsed_serve_args(parsed)
    except (SystemExit, KeyError):  # the latter for a mode of CUDA graphs that there is not
        return "arguments"
    if parsed.speculative_config is None:
        return None
    try:
        configured(dict(parsed.speculative_config), parsed.max_num_seqs, into)
    except (ValueError, TypeError, NotImplementedError, AttributeError, AssertionError, OSError, ImportError) as error:
        return f"speculation: {' '.join(str(error).split())[:300]}"
    return None


def configured(config: dict[str, Any], max_num_seqs: int, into: Path) -> None:
    """Raises what the engine would raise at its start; ValueError too where it took the drafter for another one."""
    from vllm.config import ModelConfig, ParallelConfig
    from vllm.config.speculative import SpeculativeConfig
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    method = config["method"]
    if "model" in config:
        config["model"] = written(DRAFTERS[method], into)
    model = written(WITH_MTP if method == "mtp" else TARGET, into)
    target = ModelConfig(model=model, max_model_len=16_384, dtype="bfloat16")
    made = SpeculativeConfig(**config, target_model_config=target, target_parallel_config=ParallelConfig())
    if made.method != method or made.num_speculative_tokens != config["num_speculative_tokens"]:
        raise ValueError(f"became {made.method} with {made.num_speculative_tokens} tokens")
    if "model" in config and made.draft_model_config.architectures != DRAFTERS[method]["architectures"]:
        raise ValueError(f"the drafter became {made.draft_model_config.architectures}")
    if made.num_speculative_tokens_per_batch_size is not None:
        schedule = made.num_speculative_tokens_per_batch_size
        build_dynamic_sd_schedule_lookup(schedule, max_num_seqs, made.num_speculative_tokens)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as models:
        answer = {name: refused(**command, into=Path(models)) for name, command in json.load(sys.stdin).items()}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
