"""A recipe turns settings into a command; what it does not take is told with what there is."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import with_torch
from loadgen import cli
from servers import launch, recipes
from servers.recipes import Command

ENGINE = os.environ.get("LOADGATE_VLLM_PYTHON", "")  # before it is hidden from the recipes


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("VLLM", "SGLANG"):
        monkeypatch.setenv(f"LOADGATE_{engine}_PYTHON", "/engine/bin/python")
    for name in ("LOADGATE_LLAMA_SERVER", "LOADGATE_TRTLLM_SERVE", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MY_KEY", raising=False)


def command(name: str, *assignments: str) -> Command:
    recipe = launch.load_recipe(name)
    return recipe.command(launch.parse_settings(recipe, assignments), 8123)


def refusal(name: str, *assignments: str) -> str:
    with pytest.raises(launch.RecipeError) as refused:
        command(name, *assignments)
    return str(refused.value)


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def speculation(argv: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value(argv, "--speculative-config"))
    return found


def test_names() -> None:
    """A file's name is the recipe's key, with dashes and dots; each says in a line what it is and what it needs."""
    names = launch.recipe_names()
    assert names == sorted(set(names)) and {"sim", "vllm", "qwen3.5-27b-mtp", "qwen3-8b-draft-0.6b"} <= set(names)
    for name in names:
        recipe = launch.load_recipe(name)
        assert recipe.ABOUT and recipe.NEEDS
        assert recipes.key(recipe.__name__.rpartition(".")[2]) == name  # type: ignore[attr-defined]


GOLDEN = Path(__file__).parent / "data" / "recipes.txt"
"""name: command, as --print shows it on a GPU; made by `python tests/test_recipes.py` and read by a person."""

REQUIRED = {"model": "my/model", "draft": "my/draft"}


def reviewed(name: str) -> Command:
    """With as few settings as the recipe takes, and on a GPU whatever the machine."""
    fields = launch.load_recipe(name).Settings.model_fields
    given = [f"{key}={REQUIRED[key]}" for key, field in fields.items() if field.is_required()]
    return command(name, *given, *(["device=cuda"] if "device" in fields else []))


def shown(name: str) -> str:
    """What differs between machines is replaced."""
    return reviewed(name).shell().replace(shlex.quote(sys.executable), "python")


@pytest.mark.parametrize("name", launch.recipe_names())
def test_the_command_is_the_one_that_was_reviewed(name: str) -> None:
    """--print of every recipe, word for word."""
    golden = dict(line.split(": ", 1) for line in GOLDEN.read_text().splitlines())
    assert sorted(golden) == launch.recipe_names()
    assert shown(name) == golden[name]


@pytest.mark.parametrize("name", launch.recipe_names())
def test_what_a_recipe_does_not_know_is_refused(name: str) -> None:
    """With the nearest that there is."""
    known = next(iter(launch.load_recipe(name).Settings.model_fields))
    assert f"There is no setting '{known}x' here. Did you mean {known}" in refusal(name, f"{known}x=1")


def test_recipes_are_listed_with_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    """`list recipes` reads the files without running them, and finds the same lines, in the order of the names."""
    cli._run(["list", "recipes", "--json"])
    listed = json.loads(capsys.readouterr().out)
    loaded = {name: launch.load_recipe(name) for name in launch.recipe_names()}
    assert listed == [{"name": name, "about": one.ABOUT, "needs": one.NEEDS} for name, one in loaded.items()]


LOSSY = ["llamacpp-synth", "sglang-threshold", "vllm-synthetic"]


def test_lossy_recipes_say_so() -> None:
    """These change the output, and no other recipe's line says it."""
    about = {name: launch.load_recipe(name).ABOUT for name in launch.recipe_names()}
    assert [name for name, line in about.items() if "LOSSY on purpose, it changes the output" in line] == LOSSY


STOCK = ("llamacpp", "sglang", "vllm", "qwen3-8b", "qwen3.5-27b")


@pytest.mark.parametrize(
    ("stock", "name"),
    [(stock, name) for stock in STOCK for name in launch.recipe_names() if name.startswith(f"{stock}-")],
)
def test_stock_and_speculating_servers_differ_in_speculation_alone(stock: str, name: str) -> None:
    """A fair comparison, whatever the engine: the stock server's flags come first, and all of them."""
    plain, made = reviewed(stock), reviewed(name)
    assert made.argv[: len(plain.argv)] == plain.argv
    assert made.argv[len(plain.argv)].startswith(("--spec", "-md", "--per-request-spec"))
    only_for_it = {"VLLM_USE_V2_MODEL_RUNNER": "1"} if name == "qwen3.5-27b-mtp" else {}
    assert made.env == {**plain.env, **only_for_it}


def test_a_patched_engine_comes_before_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is the first that Python looks into; one that is none is refused."""
    monkeypatch.setenv("PYTHONPATH", "/before")
    made = command("qwen3.5-27b-mtp", f"engine_dir={tmp_path}")
    assert made.env["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/before"
    assert (
        f"engine_dir (a patched vLLM's folder, first in PYTHONPATH of the server): {tmp_path / 'x'} is no folder"
        in refusal("vllm", "model=m", f"engine_dir={tmp_path / 'x'}")
    )


def test_tiers_are_inclusive_ranges_from_one_on() -> None:
    """As vLLM wants them, from bounds in a form that also stands in recipe:NAME,key=value, where commas part."""
    argv = command("qwen3.5-27b-mtp", "tiers=4:6/9:3").argv
    assert speculation(argv)["num_speculative_tokens_per_batch_size"] == [[1, 4, 6], [5, 9, 3]]


@pytest.mark.parametrize("tiers", ["", "4", "4:6/4:3", "9:6/4:3", "4:-1", "0:6", "4:6/", "[[1,4,6]]"])
def test_other_tiers_are_refused(tiers: str) -> None:
    """With the setting's name and an example of its form."""
    assert "The setting tiers (tokens drafted up to so many" in refusal("qwen3.5-27b-mtp", f"tiers={tiers}")


ONLY_PARSED = {"vllm-suffix": "Arctic Inference is required"}
"""Recipes whose arguments vLLM's parser accepts, and whose configuration of speculation cannot be asked here: why."""


@pytest.mark.engine
def test_the_real_vllm_accepts_every_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own parser of arguments, its table of variables and its configuration of speculation.

    A CPU build refuses nothing of that. What it cannot run, it refuses when it starts, which needs weights.
    """
    monkeypatch.setenv("LOADGATE_VLLM_PYTHON", ENGINE)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = [name for name in launch.recipe_names() if name.startswith(("vllm", "qwen"))]
    made = {name: reviewed(name) for name in names}
    given = {name: {"argv": one.argv[3:], "env": list(one.env)} for name, one in made.items()}  # after python -m MODULE
    answer = with_torch(str(Path(__file__).parent / "vllm_arguments.py"), given=json.dumps(given))
    said = json.loads(answer.splitlines()[-1])
    assert sorted(said) == names
    for name, refused in said.items():
        if name in ONLY_PARSED:
            assert refused is not None and ONLY_PARSED[name] in refused
        else:
            assert refused is None, f"{name}: {refused}"


def test_unknown_recipe_names_the_nearest() -> None:
    """A slip of the pen costs one more look."""
    with pytest.raises(launch.RecipeError, match=r"no recipe 'vllm_ngram'. Did you mean vllm-ngram"):
        launch.load_recipe("vllm_ngram")


def test_sim_gets_only_what_differs() -> None:
    """The engine's own defaults are not repeated, so the command stays readable."""
    base = [sys.executable, "-m", "servers.sim", "--port", "8123"]
    assert command("sim").argv == base
    assert command("sim", "kv_cache_tokens=4096", "speculative=0").argv == [*base, "--kv-cache-tokens", "4096"]
    assert command("sim-spec").argv == [*base, "--speculative", "4"]
    assert command("sim-spec", "speculative=7").argv == [*base, "--speculative", "7"]


def test_speculation_of_vllm_is_one_line_of_json() -> None:
    """What the recipe's settings say, and the engine's defaults for the rest."""
    ngram = command("vllm-ngram", "model=Qwen/Qwen3-8B", "device=cuda")
    draft = command("vllm-draft", "model=Qwen/Qwen3-8B", "device=cuda", "draft=Qwen/Qwen3-0.6B")
    assert speculation(ngram.argv) == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    assert speculation(draft.argv) == {
        "method": "draft_model",
        "model": "Qwen/Qwen3-0.6B",
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
    }


def test_flags_of_a_fair_comparison() -> None:
    """No sampling default of the model's, no prefix cache, complete raw log-probabilities."""
    argv = command("vllm", "model=m").argv
    assert argv[:3] == ["/engine/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert value(argv, "--generation-config") == "vllm"
    assert value(argv, "--max-logprobs") == "20"
    assert value(argv, "--logprobs-mode") == "raw_logprobs"
    assert value(argv, "--served-model-name") == "m"
    assert "--no-enable-prefix-caching" in argv
    assert "--max-model-len" not in argv


def test_memory_flags_follow_the_device() -> None:
    """A GPU's memory share means nothing on the CPU, whose KV cache is sized by the environment."""
    on_gpu = command("vllm", "model=m", "device=cuda")
    assert value(on_gpu.argv, "--gpu-memory-utilization") == "0.9"
    assert value(on_gpu.argv, "--max-num-seqs") == "256"
    assert "VLLM_CPU_KVCACHE_SPACE" not in on_gpu.env
    on_cpu = command("vllm", "model=m", "device=cpu", "kv_cache_gib=3", "max_num_seqs=8", "threads=2")
    assert "--gpu-memory-utilization" not in on_cpu.argv
    assert value(on_cpu.argv, "--max-num-seqs") == "8"
    assert on_cpu.env["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert on_cpu.env["OMP_NUM_THREADS"] == "2"


def test_folder_needs_no_hub(tmp_path: os.PathLike[str]) -> None:
    """A model on disk is served offline; a name is fetched."""
    assert command("vllm", f"model={tmp_path}").env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in command("vllm", "model=Qwen/Qwen3-8B").env


def test_draft_by_name_keeps_the_hub(tmp_path: os.PathLike[str]) -> None:
    """Offline only where nothing is left to fetch."""
    assert "HF_HUB_OFFLINE" not in command("vllm-draft", f"model={tmp_path}", "draft=Qwen/Qwen3-0.6B").env
    assert command("vllm-draft", f"model={tmp_path}", f"draft={tmp_path}").env["HF_HUB_OFFLINE"] == "1"


def test_extra_flags_come_as_in_a_shell() -> None:
    """Quotes group words."""
    argv = command("vllm", "model=m", """extra=--block-size 32 --hf-overrides '{"a": 1}'""").argv
    assert argv[-4:] == ["--block-size", "32", "--hf-overrides", '{"a": 1}']


def test_shell_line_is_the_command() -> None:
    """What --print shows can be pasted."""
    made = command("vllm-ngram", "model=m", "device=cpu")
    words = shlex.split(made.shell())
    assert words == [f"{name}={text}" for name, text in made.env.items()] + made.argv


def test_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key itself is in no argument and no line that is shown."""
    monkeypatch.setenv("MY_KEY", "s3cret-key")
    made = command("vllm", "model=m", "api_key_env=MY_KEY")
    assert made.secrets == {"VLLM_API_KEY": "MY_KEY"}
    assert "s3cret-key" not in made.shell()


@pytest.mark.parametrize(
    ("name", "assignments", "said"),
    [
        ("vllm", ["modle=m"], "There is no setting 'modle' here. Did you mean model"),
        ("vllm", [], "The setting model is needed (a folder, or a name on the model hub): --set model=…"),
        ("vllm-draft", ["model=m"], "The setting draft is needed"),
        ("vllm", ["model"], "A setting is written key=value; 'model' has no '='."),
        ("vllm", ["model=m", "seed=zero"], "The setting seed: Input should be a valid integer"),
        ("vllm", ["model=m", "max_num_seqs=-1"], "The setting max_num_seqs"),
        ("vllm", ["model=m", "device=gpu"], "Input should be 'auto', 'cpu' or 'cuda'"),
        ("vllm", ["model=m", "api_key_env=MY_KEY"], "names MY_KEY, which is not set"),
        ("vllm", ["model=m", "extra=--api-key=s3cret"], "set api_key_env instead"),
        ("vllm", ["model=m", "extra='open"], "No closing quotation"),
        ("vllm-ngram", ["model=m", "prompt_lookup_min=9"], "prompt_lookup_min 9 is more than prompt_lookup_max 4"),
        ("vllm-synthetic", ["model=m", "draft=d", "synthetic_acceptance_length=6"], "6.0 is more than 5"),
        ("llamacpp-synth", ["model=m", "draft=d", "synthetic_length=6"], "6.0 is more than draft_max 4 + 1"),
        ("sim", ["api_key=s3cret"], "would be seen in the list of processes"),
        ("sim-spec", ["speculative=0"], "greater than or equal to 1"),
        ("sim", ["max_model_len=9000"], "more than the KV cache holds"),
    ],
)
def test_refusals(name: str, assignments: list[str], said: str) -> None:
    """A wrong setting is told before anything starts, without repeating what may be a secret."""
    sentence = refusal(name, *assignments)
    assert said in sentence
    assert "s3cret" not in sentence


def test_no_python_with_vllm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the setting nor the variable: both ways are named."""
    monkeypatch.delenv("LOADGATE_VLLM_PYTHON")
    assert "neither this setting nor LOADGATE_VLLM_PYTHON" in refusal("vllm", "model=m")


if __name__ == "__main__":
    os.environ |= {"LOADGATE_VLLM_PYTHON": "/engine/bin/python", "LOADGATE_SGLANG_PYTHON": "/engine/bin/python"}
    GOLDEN.write_text("".join(f"{name}: {shown(name)}\n" for name in launch.recipe_names()))
