"""Reports in every format: what is said, how wide, and that a server's text stays text."""

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

import factories
from gates import contest, latency, report
from gates.finding import Estimate, Finding, Needs, Score, Speed, Verdict
from gates.report import Report, markdown, text
from gates.report._figures import figure, milliseconds, percent
from gates.report._harmless import markdown as escaped
from gates.report._harmless import visible
from loadgen.record import Run

DATA = Path(__file__).parent / "data" / "contest"
NASTY = "\x1b[2J\x07evil\u202eslived\u2028\r\n"
NASTY += "| <img src=x onerror=1> [x](https://evil.example) `a` **b** @me 模型 [red]r[/red]"
FORMATS = ("text", "markdown", "json")


def estimate(value: float, low: float | None, high: float | None, unit: str) -> Estimate:
    return Estimate(value=value, low=low, high=high, level=0.95, n=41_210, unit=unit, method="m")


def finding(check: str = "likelihood", **changes: Any) -> Finding:
    plain = Finding(
        check=check,
        required=True,
        outcome="equivalent",
        estimate=estimate(0.002, -0.007, 0.011, "nat a token"),
        stock=estimate(0.001, -0.008, 0.010, "nat a token"),
        margin=0.02,
        says="like a temperature error under 1 %",
    )
    return plain.model_copy(update=changes)


def verdict(**changes: Any) -> Verdict:
    plain = Verdict(
        plan="strict",
        inputs={},
        outcome="equivalent",
        interim=False,
        specscore=Score(value=1.91, low=1.84, high=1.98),
        speed={"solo": Speed(ratio=2.45, low=2.31, high=2.58, passes=[2.4, 2.5])},
        acceptance={"solo": 3.68},
        diagnosis=None,
        needs=None,
        warnings=[],
        findings=[finding()],
    )
    return plain.model_copy(update=changes)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Report:
    run = factories.comparison(tmp_path_factory.mktemp("compared") / "run", np.random.default_rng(3))
    return Report(run=run, summary=latency.summarise(run), verdict=verdict())


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Report:
    run = factories.single(tmp_path_factory.mktemp("single") / "run", np.random.default_rng(3))
    return Report(run=run, summary=latency.summarise(run))


def published(compared: Report, name: str) -> Report:
    content = json.loads((DATA / f"{name}.json").read_text())
    _, record = contest.parse(content)
    asked = {**compared.facts, "submission": content["submission"]}
    return dataclasses.replace(compared, contest=record, asked=asked)


def test_the_formats_are_the_files() -> None:
    """One file a format; the command names the same ones."""
    from loadgen.cli.report import FORMATS as OFFERED

    assert report.names() == sorted(FORMATS)
    assert sorted(OFFERED) == report.names()


def test_a_comparison_says_the_verdict_the_speeds_and_the_checks(compared: Report) -> None:
    """Outcome and SpecScore first; a row a profile; a row a check with its interval, margin and meaning."""
    shown = text.render(compared)
    assert "EQUIVALENT   1.91× faster (SpecScore; 95 %: 1.84 … 1.98)" in shown
    assert re.search(r"solo +1 +100 tok/s +200 tok/s +2\.45× +2\.31 … 2\.58 +3\.68 +10\.0 → 20\.0 ms", shown)
    assert re.search(
        r"likelihood +\+0\.002 +−0\.007 … \+0\.011 nat +±0\.02 +ok +like a temperature error under 1 %", shown
    )
    assert "41,210 tokens scored; the stock server's own replies under the same checks: clean." in shown
    assert str(compared.run.path) in shown


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"outcome": "different", "diagnosis": "looks like temperature 0.95"}, "DIFFERENT   1.91× faster"),
        ({"outcome": "different", "diagnosis": "looks like temperature 0.95"}, "looks like temperature 0.95"),
        ({"outcome": "undecided", "needs": Needs(tokens=14_123)}, "about 14,000 more scored tokens (1 pass) to go"),
        ({"interim": True}, "so far"),
        ({"specscore": None}, "EQUIVALENT\n"),
        ({"specscore": Score(value=0.55, low=None, high=None)}, "0.55× as fast (SpecScore)"),
        ({"warnings": ["The client was late."]}, "note: The client was late."),
        ({"findings": []}, "No token of the candidate was scored."),
    ],
)
def test_the_headline_says_what_follows(compared: Report, changes: dict[str, Any], said: str) -> None:
    """Diagnosis, what is still needed, an unfinished run, a missing or a slow score, warnings."""
    assert said in text.render(dataclasses.replace(compared, verdict=verdict(**changes)))


def test_a_profile_is_shown_where_it_differs_from_the_whole(compared: Report) -> None:
    """Pooled findings always; a profile's own when it is not within its margin."""
    found = [
        finding(),
        finding(profile="solo"),
        finding(profile="busy", outcome="different", says="as if sampled at 0.95"),
        finding(
            "fidelity", required=False, outcome="undecided", estimate=None, stock=None, margin=None, says="no data"
        ),
    ]
    shown = text.render(dataclasses.replace(compared, verdict=verdict(findings=found)))
    assert "likelihood, busy" in shown
    assert "likelihood, solo" not in shown
    assert re.search(r"likelihood, busy .* ✗ +as if sampled", shown)
    assert re.search(r"fidelity +– +– +no data", shown)


def test_stock_off_zero_is_said(compared: Report) -> None:
    """A/A that is not clean stands beneath the checks with its value."""
    off = finding(stock=estimate(0.04, 0.02, 0.06, "nat a token"))
    shown = text.render(dataclasses.replace(compared, verdict=verdict(findings=[off])))
    assert "the stock server's own replies under the same checks: off zero in likelihood (+0.040)." in shown


def test_a_run_of_one_endpoint_shows_latency_and_throughput(single: Report) -> None:
    """A block for each profile: quantiles and rates with their intervals, and what those rest on."""
    shown = text.render(single)
    assert "solo   endpoint   1 lane   3 passes" in shown
    assert re.search(r"TTFT +10\.0 ms +10\.0 … 10\.0", shown)
    assert re.search(r"output tokens/s +100 +100 … 100", shown)
    assert "t over passes" in shown
    assert "SpecScore" not in shown


def test_a_run_without_a_success_shows_dashes(tmp_path: Path) -> None:
    """No figure where nothing succeeded; the failures by kind."""
    shape = factories.Shape(requests=60)
    run = factories.single(tmp_path / "run", np.random.default_rng(3), factories.Server(failing=1.0), shape)
    shown = text.render(Report(run=run, summary=latency.summarise(run)))
    assert re.search(r"TTFT +–", shown)
    assert "failed: 180 connection reset" in shown
    assert "0.0 ms" not in shown.replace("10.0 ms", "")


def test_a_run_of_one_request_is_shown(tmp_path: Path) -> None:
    """Figures without bounds are figures without bounds."""
    shape = factories.Shape(profiles={"solo": 1}, passes=1, requests=1)
    run = factories.single(tmp_path / "run", np.random.default_rng(3), shape=shape)
    for name in FORMATS:
        assert "solo" in report.load(name)(Report(run=run, summary=latency.summarise(run)))
    assert "1 request ended, 1 succeeded" in text.render(Report(run=run, summary=latency.summarise(run)))


def test_a_run_that_sent_nothing_says_so(tmp_path: Path) -> None:
    """An empty run is no table of dashes."""
    run = factories.single(tmp_path / "run", np.random.default_rng(3), shape=factories.Shape(passes=0, ended=None))
    shown = text.render(Report(run=run, summary=latency.summarise(run)))
    assert "No timed request has ended." in shown
    assert "did not end by itself" in shown


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "qwen3-8b-dspark-k7",
            [
                r"Qwen3-8B · development",
                r"Passed every gate\.",
                r"SpecScore 1\.907 — geometric mean of the three speedups",
                r"solo 2\.45x one lane; passes 2\.55, 1\.97, 2\.45",
                r"busy 1\.58x KV cache nearly full; passes 1\.71, 1\.58, 1\.56",
                r"device memory +162\.8 GiB +<= 165\.2 GiB +pass",
                r"share of first choices +– +within ±0\.01 at 95% +n/a",
                r"greedy agreement +0\.997 +none on this task +n/a",
                r"team +3\.73 +1\.79x",
            ],
        ),
        (
            "qwen3.5-27b-mtp-dynamic-k",
            [
                r"Lossless gate failed: failed more requests than the stock engine in most busy passes\. SpecScore 0\.",
                r"SpecScore 0$",
                r"busy 0\.00x KV cache nearly full; passes 0\.00, 0\.00, 0\.00",
                r"fixed texts' log-probabilities +0\.012 +<= 0\.017 +pass",
                r"sampled replies' likelihood +-0\.0259 ± 0\.0517 +within ±0\.02 at 95% +pass +2\.5 %, 11 %, 33 %",
                r"share of first choices +\+0\.0056 ± 0\.0118 +within ±0\.003 at 95% +pass",
                r"failed requests +busy 3 of 3 passes .* fail",
                r"busy +– +0\.00x",
            ],
        ),
    ],
)
def test_the_contest_page_is_as_the_contest_shows_it(compared: Report, name: str, lines: list[str]) -> None:
    """Headline, verdict sentence, score, a line a workload, the gates with what they could have missed."""
    shown = text.render(published(compared, name))
    for line in lines:
        assert re.search(line, shown, re.MULTILINE), line


def test_the_contest_page_in_markdown_ends_with_a_record_that_can_be_rechecked(compared: Report) -> None:
    """The JSON beneath the page is the file that recheck reads, and reproduces."""
    page = markdown.render(published(compared, "qwen3-8b-dspark-k7"))
    (record,) = re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)
    assert contest.recheck(json.loads(record)).reproduced


def nasty(compared: Report) -> Report:
    """Everything that a server or a submission may say, said nastily."""
    asked = json.loads(json.dumps(compared.facts))
    for facts in asked["endpoints"].values():
        facts |= {"model": NASTY, "url": f"http://h/{NASTY}", "served": {"version": NASTY}}
    asked["submission"] = {"title": NASTY, "model": NASTY, "track": NASTY, "engine": NASTY}
    found = verdict(warnings=[NASTY], findings=[finding(says=NASTY)], diagnosis=NASTY)
    return dataclasses.replace(compared, asked=asked, verdict=found)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("of_contest", [False, True])
def test_a_servers_text_is_never_obeyed(compared: Report, name: str, of_contest: bool) -> None:
    """No control, format or line-breaking character reaches the output, in any format."""
    page = nasty(compared)
    if of_contest:
        page = dataclasses.replace(page, contest=published(compared, "qwen3-8b-dspark-k7").contest)
    shown = report.load(name)(page)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", shown)
    assert "evil" in shown


def test_markdown_takes_no_markup_from_a_server(compared: Report) -> None:
    """Tags, links, emphasis, mentions and cell borders arrive as text, and the text is whole."""
    shown = markdown.render(nasty(compared))
    assert "<img" not in shown
    assert "](http" not in shown
    assert "https://evil" not in shown
    assert "**b**" not in shown
    assert "@me" not in shown
    rows = [line for line in shown.splitlines() if line.startswith("| candidate")]
    assert [row.count(" | ") for row in rows] == [3]
    assert html.unescape(escaped("a|b <c> *d* https://e")) == "a|b <c> *d* https://e"


def test_rich_markup_in_a_name_is_shown_as_it_is(compared: Report) -> None:
    """[red] is a part of the name, not a colour."""
    assert "[red]r[/red]" in re.sub(r"\s", "", text.render(nasty(compared)))


@pytest.mark.parametrize("of_contest", [False, True])
def test_no_line_is_wider_than_a_terminal(compared: Report, single: Report, of_contest: bool) -> None:
    """At most 110 cells, wide characters counted as two, however long the names are."""
    page = nasty(compared)
    if of_contest:
        page = dataclasses.replace(page, contest=published(compared, "qwen3-8b-draft-0.6b-k4").contest)
    for one in (page, single, compared):
        assert max(cell_len(line) for line in text.render(one).splitlines()) <= 110


def test_wrapping_loses_nothing(compared: Report) -> None:
    """A long model name is folded, not cut."""
    name = "org/" + "very-long-name-" * 8 + "end"
    asked = json.loads(json.dumps(compared.facts))
    asked["endpoints"]["stock"]["model"] = name
    shown = text.render(dataclasses.replace(compared, asked=asked))
    block = shown.split("candidate")[0]
    assert len(re.findall("very-long-name-", re.sub(r"\s", "", block))) >= 7


def test_json_has_it_all_unrounded(compared: Report) -> None:
    """The verdict with its fixed field names, the summary, what was asked."""
    content = json.loads(report.load("json")(compared))
    assert set(content) == {"run", "complete", "asked", "verdict", "summary", "contest"}
    assert content["verdict"] == json.loads(json.dumps(verdict().as_json()))
    assert content["verdict"]["schema"] == 1
    assert content["summary"]["loads"][0]["ttft_ms"]["p50"]["unit"] == "requests"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain Qwen/Qwen3-8B ü 模型", "plain Qwen/Qwen3-8B ü 模型"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202e\u200b\ufeff", "\\u202e\\u200b\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_characters_that_act_are_shown_as_escapes(raw: str, shown: str) -> None:
    """Whatever prints stays; whatever acts is written out."""
    assert visible(raw) == shown


def test_a_page_of_an_error_is_cut() -> None:
    """A server's whole HTML page is not shown."""
    assert len(visible("x" * 100_000)) == 400


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0"), (6430.4, "6,430"), (141.2, "141"), (99.96, "100"), (38.14, "38.1"), (7.41, "7.41"),
     (0.0123, "0.012"), (0.00003, "3e-05")],
)  # fmt: skip
def test_figures_have_three_digits(value: float | None, shown: str) -> None:
    """A missing figure is a dash, never 0."""
    assert figure(value) == shown


def test_units_are_converted_at_the_end() -> None:
    """Milliseconds to seconds where they are many; shares that are not quite none or all say so."""
    assert [milliseconds(value) for value in (7.41, 99.97, 1459, 12_340, None)] == [
        "7.4 ms",
        "100 ms",
        "1,459 ms",
        "12.3 s",
        "–",
    ]
    assert [percent(share) for share in (0, 0.0004, 0.024, 0.7, 0.999, 1)] == [
        "0.0 %",
        "<0.1 %",
        "2.4 %",
        "70 %",
        ">99 %",
        "100 %",
    ]


def test_two_runs_are_shown_under_their_roles(tmp_path: Path) -> None:
    """Stock's run and the candidate's, each of one endpoint with the same label."""
    runs = [factories.single(tmp_path / name, np.random.default_rng(seed)) for seed, name in enumerate(("a", "b"))]
    made = report.judged(runs, "strict")
    shown = text.render(made)
    assert {load.endpoint for load in made.summary.loads} == {"stock", "candidate"}
    assert re.search(r"solo +1 +100 tok/s +100 tok/s", shown)


def test_a_contest_is_judged_by_its_own_rules(tmp_path: Path) -> None:
    """The plan says which: the report then has the record, and shows the submission given."""
    run = factories.comparison(tmp_path / "run", np.random.default_rng(3))
    made = report.judged([run], "contest", submission={"title": "T", "model": "M", "track": "K"})
    assert made.contest is not None
    assert made.verdict is not None
    assert text.render(made).startswith("M · K\n\nT\n")
    assert isinstance(made.run, Run)
