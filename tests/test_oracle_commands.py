"""Oracles at the commands: real local servers, files, and what is refused."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from loadgen import cli, oracle
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint, EndpointConfigError, EndpointError, Opened
from loadgen.record import Run
from loadgen.transport import SocketTransport
from playback import answer, playing
from servers import launch

QUICK = ["--profile", "team", "--passes", "1", "--requests", "8", "--max-tokens", "48"]


@contextmanager
def serving(*assignments: str) -> Iterator[str]:
    recipe = launch.load_recipe("sim")
    with launch.start(recipe, launch.parse_settings(recipe, ["step_ms=2", *assignments])) as server:
        server.wait_healthy(60)
        yield server.url


@pytest.fixture(scope="module")
def stock() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture(scope="module")
def draft() -> Iterator[str]:
    with serving("serves=draft", "model=some/sim-draft") as url:
        yield url


@pytest.fixture(scope="module")
def compared(stock: str, draft: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("oracles") / "run"
    assert cli._run(["compare", stock, stock, *QUICK, "--oracle", draft, "--out", str(out)]) == 3  # too few tokens
    return out


def test_an_oracle_scores_what_the_reference_scores(compared: Path, stock: str, draft: str) -> None:
    """Every timed pass, into a folder of the model's own name, other values for the same tokens; probes it leaves."""
    run = Run.open(compared)
    order = ["request", "position"]  # rows come as replies were scored
    reference = {(label, profile): np.sort(rows, order=order) for label, profile, _, rows in run.scores()}
    its = {(label, profile): np.sort(rows, order=order) for label, profile, _, rows in run.scores("sim-draft")}
    assert run.oracles() == {"sim-draft": "some/sim-draft"}
    assert set(its) == {("stock", "team"), ("candidate", "team")} <= set(reference)
    for key, rows in its.items():
        assert rows["token_id"].tolist() == reference[key]["token_id"].tolist()
        assert abs(rows["logprob"] - reference[key]["logprob"]).mean() > 0.1
    kept = json.loads((compared / "scores" / "oracle-sim-draft" / "oracle.json").read_bytes())
    assert (kept["model"], kept["url"]) == ("some/sim-draft", draft)


def test_judge_finds_oracles_by_itself(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report names it, and judging anew says what was said."""
    before = json.loads((compared / "verdict.json").read_bytes())
    capsys.readouterr()
    assert cli._run(["judge", str(compared)]) == 3
    assert "sim-draft" in capsys.readouterr().out
    assert json.loads((compared / "verdict.json").read_bytes()) == before
    assert [one["check"] for one in before["findings"]].count("oracle") == 1


def test_score_adds_an_oracle_to_a_run(stock: str, draft: str, tmp_path: Path, capsys: Any) -> None:
    """Afterwards, once: what has scores is left alone."""
    out = str(tmp_path / "run")
    assert cli._run(["run", stock, "--profile", "team", "--requests", "8", "--max-tokens", "16", "--out", out]) == 0
    done = []
    for _ in range(2):
        capsys.readouterr()
        assert cli._run(["score", out, "--reference", stock, "--oracle", draft, "--json"]) == 0
        done.append(list(json.loads(capsys.readouterr().out)["scored"]))
    names = [one for one in done[0] if "oracle" in one]
    assert names and all(one.startswith("oracle-sim-draft/endpoint-team-") for one in names)
    assert (len(names), done[1]) == (len(done[0]) / 2, [])


def test_another_model_of_an_oracle_s_name_is_refused(stock: str, draft: str, compared: Path, capsys: Any) -> None:
    """Scores of two models would be judged as those of one: exit 2, with both names."""
    kept = compared / "scores" / "oracle-sim-draft" / "oracle.json"
    before = kept.read_bytes()
    try:
        kept.write_text('{"model": "another"}')
        code = cli._run(["score", str(compared), "--reference", stock, "--oracle", draft])
    finally:
        kept.write_bytes(before)
    assert code == 2
    assert "holds scores of another under the name sim-draft" in capsys.readouterr().err


def test_mistakes_are_said_before_anything_is_driven(stock: str, draft: str, tmp_path: Path, capsys: Any) -> None:
    """One oracle twice, and one that nobody serves: exit code, sentence, no run directory."""
    for given, code, says in (
        ([draft, draft], 2, "Two oracles are called sim-draft"),
        (["http://127.0.0.1:9"], 4, "gave no answer"),
        (["nowhere"], 2, "http"),
    ):
        oracles = [part for url in given for part in ("--oracle", url)]
        assert cli._run(["compare", stock, stock, *QUICK, *oracles, "--out", str(tmp_path / "run")]) == code
        assert says in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


# Tokenizers, and servers that cannot score.

MODELS = answer(200, orjson.dumps({"data": [{"id": "org/tide 1:q4", "owned_by": "vllm", "max_model_len": 64}]}))
NO_VERSION = answer(404, b"{}")
NO_TOKENIZE = answer(404, b"{}")


def tokens(*ids: int) -> Any:
    return answer(200, orjson.dumps({"tokens": ids}))


async def opened(stack: AsyncExitStack, *scripts: Any, label: str = "endpoint") -> Opened:
    server = await stack.enter_async_context(playing(MODELS, NO_VERSION, *scripts))
    made = await open_endpoint(Endpoint(url=server.url, label=label), SocketTransport())
    stack.push_async_callback(made.close)
    return made


async def test_another_tokenizer_is_refused() -> None:
    """Where both say how they tokenize, and differ."""
    async with AsyncExitStack() as stack:
        reference, one = await opened(stack, tokens(1, 2, 3)), await opened(stack, tokens(1, 2))
        with pytest.raises(
            EndpointConfigError, match="another tokenizer than the reference: of a fixed text it makes 2"
        ):
            await oracle.checked(reference, [one])


async def test_a_server_without_tokenize_is_believed_and_must_score() -> None:
    """No tokenizer to compare is no reason; no prompt log-probabilities is one."""
    async with AsyncExitStack() as stack:
        reference, one = await opened(stack, tokens(1, 2, 3)), await opened(stack, NO_TOKENIZE)
        with pytest.raises(EndpointError, match=r"oracle tide-1-q4 is of no use: .* cannot score"):
            await oracle.checked(reference, [one])


async def test_an_oracle_is_called_by_its_label_else_by_its_model() -> None:
    """A model's name as a folder can bear it."""
    async with AsyncExitStack() as stack:
        names = [oracle.name_of(await opened(stack, label=label)) for label in ("endpoint", "int4")]
    assert names == ["tide-1-q4", "int4"]
