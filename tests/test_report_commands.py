"""`loadgate recheck` and `loadgate report`: what they print, and their exit codes."""

import json
from pathlib import Path

import numpy as np
import pytest

import factories
from loadgen import cli

DATA = Path(__file__).parent / "data" / "contest"


def exit_code(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(arg) for arg in args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("name", ["qwen3-8b-dspark-k7", "qwen3-8b-draft-0.6b-k4", "qwen3.5-27b-mtp-dynamic-k"])
def test_recheck_reproduces_the_published_records(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, also for the one that failed its gate: the recorded result is reproduced."""
    assert exit_code("recheck", DATA / f"{name}.json") == 0
    assert "Reproduced: " in capsys.readouterr().out


def test_recheck_json_has_the_score_to_the_last_digit(capsys: pytest.CaptureFixture[str]) -> None:
    """For machines: score, reason, medians, gates, differences."""
    assert exit_code("recheck", DATA / "qwen3-8b-dspark-k7.json", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["reproduced"], again["specscore"], again["reason"]) == (True, 1.9072668853467876, None)
    assert again["medians"] == {"solo": 2.445651862365559, "team": 1.7906191626930736, "busy": 1.5842967892926871}


def test_recheck_names_what_is_not_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, and each field with both values."""
    content = json.loads((DATA / "qwen3-8b-dspark-k7.json").read_text())
    content["record"]["score"] = 2.5
    file = tmp_path / "record.json"
    file.write_text(json.dumps(content))
    assert exit_code("recheck", file) == 1
    out = capsys.readouterr().out
    assert "NOT REPRODUCED" in out
    assert "score: recorded 2.5, recomputed 1.9072668853467876" in out


@pytest.mark.parametrize("content", ["{}", "[]", "no json", '{"record": {"ratios": {}}}', '{"ratios": NaN}', "\ufffd"])
def test_recheck_of_no_record_is_wrong_usage(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, with the file's name."""
    file = tmp_path / "record.json"
    file.write_text(content)
    assert exit_code("recheck", file) == 2
    assert str(file) in capsys.readouterr().err


def test_recheck_of_a_missing_file_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2."""
    assert exit_code("recheck", tmp_path / "none.json") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_report_judges_a_comparison_that_has_no_verdict_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the verdict and writes nothing."""
    run = factories.comparison(tmp_path / "run", np.random.default_rng(3))
    before = sorted(run.path.iterdir())
    assert exit_code("report", run.path) == 0
    assert "(SpecScore" in capsys.readouterr().out
    assert sorted(run.path.iterdir()) == before


def test_report_of_one_endpoint_is_its_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the format asked for."""
    run = factories.single(tmp_path / "run", np.random.default_rng(3))
    assert exit_code("report", run.path, "--format", "markdown") == 0
    assert "| TTFT | 10.0 ms |" in capsys.readouterr().out


def test_report_shows_the_verdict_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """verdict.json holds while the files are those it was made from; after that the run is judged again."""
    run = factories.comparison(tmp_path / "run", np.random.default_rng(3))
    exit_code("judge", run.path, "--plan", "contest")
    capsys.readouterr()
    assert exit_code("report", run.path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["plan"] == "contest"
    kept = json.loads((run.path / "verdict.json").read_text())
    (run.path / "verdict.json").write_text(json.dumps({**kept, "warnings": ["kept"]}))
    exit_code("report", run.path, "--json")
    assert json.loads(capsys.readouterr().out)["verdict"]["warnings"] == ["kept"]
    next(run.path.glob("scores/*.npy")).unlink()
    exit_code("report", run.path, "--json")
    assert json.loads(capsys.readouterr().out)["verdict"]["warnings"] != ["kept"]


def test_report_of_two_judged_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The directory that judge made of two runs can be shown as a run can."""
    runs = [factories.single(tmp_path / name, np.random.default_rng(seed)) for seed, name in enumerate(("a", "b"))]
    exit_code("judge", runs[0].path, runs[1].path, "--out", tmp_path / "both")
    capsys.readouterr()
    assert exit_code("report", tmp_path / "both") == 0
    assert "candidate" in capsys.readouterr().out


def test_report_of_no_run_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2."""
    assert exit_code("report", tmp_path) == 2
    assert "no run directory" in capsys.readouterr().err
