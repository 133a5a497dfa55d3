"""Plans: what is read, what is refused, and with which words."""

from pathlib import Path

import pytest

from gates import checks, plan
from gates.checks import eos, failures, first_choice, junk, likelihood, pit, repeat_prefix, tail
from gates.plan import PlanError


def test_strict_is_the_design() -> None:
    """Margins and levels that are promised to the user."""
    strict = plan.load("strict")
    assert (strict.name, strict.alpha_different, strict.level_equivalent, strict.replies) == (
        "strict",
        0.001,
        0.95,
        100,
    )
    assert strict.required == {
        "likelihood": likelihood.Settings(margin_temperature=0.025, profile_margin_temperature=0.075),
        "first_choice": first_choice.Settings(margin=0.01, profile_margin=0.03),
        "tail": tail.Settings(),
        "junk": junk.Settings(),
        "pit": pit.Settings(),
        "repeat_prefix": repeat_prefix.Settings(kl=0.005),
        "eos": eos.Settings(margin_ratio=0.25),
        "failures": failures.Settings(margin_points=1.0),
    }
    probed = ["agreement", "independence", "fidelity", "honesty", "greedy"]
    assert list(strict.if_available) == [*probed, "memory", "lengths"]


def test_demo_is_strict_with_wider_margins() -> None:
    """The same error levels, and the same checks but those that ask for probes: they take longer than the demo."""
    demo, strict = plan.load("demo"), plan.load("strict")
    assert list(demo.required) == [name for name in strict.required if not checks.probes(name)]
    assert list(demo.if_available) == ["memory", "lengths"]
    assert (demo.alpha_different, demo.level_equivalent) == (strict.alpha_different, strict.level_equivalent)
    for name, settings in demo.required.items():
        for field, margin in settings.model_dump().items():
            assert margin > strict.required[name].model_dump()[field]


def test_a_plan_may_be_a_file_and_is_named_after_it(tmp_path: Path) -> None:
    """Settings that are not given are the check's own."""
    file = tmp_path / "mine.toml"
    file.write_text("[required]\nfailures = {}\n")
    mine = plan.load(str(file))
    assert (mine.name, mine.required) == ("mine", {"failures": failures.Settings()})


def test_an_unknown_plan_names_the_nearest() -> None:
    """And what there is."""
    with pytest.raises(PlanError, match=r"no plan 'strickt', .* Did you mean strict\? There are .*demo, strict"):
        plan.load("strickt")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("alpha = 0.01\n[required]\nfailures = {}", r"alpha: there is no such key\. Did you mean alpha_different\?"),
        ("[required]\nlikelyhood = {}", r"required\.likelyhood: there is no such check\. Did you mean likelihood\?"),
        ("[required]\nfailures = {margin = 1}", r"required\.failures\.margin: .*Did you mean margin_points\?"),
        ("[required]\nfailures = {margin_points = -1}", r"required\.failures\.margin_points: .*greater than 0"),
        ("[required]\nfailures = {margin_points = 'one'}", r"required\.failures\.margin_points: .*valid number"),
        ("[required]\nfailures = 3", r"required\.failures: .*dictionary"),
        ("required = 3", r"required = 3: a table of checks is expected"),
        ("strata = ['chunk']\n[required]\nfailures = {}", r"strata\.0: Input should be 'profile'"),
        ("alpha_different = 2.0\n[required]\nfailures = {}", r"alpha_different: .*less than or equal to 0\.1"),
        ("[if_available]\nlengths = {}", r"no check is required"),
        ("[required]\nfailures = {}\n[if_available]\nfailures = {}", r"failures is both required and if_available"),
        ("[required", r"not readable as TOML"),
    ],
)
def test_a_mistake_names_the_file_the_key_and_what_is_allowed(tmp_path: Path, text: str, says: str) -> None:
    """One sentence a mistake."""
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(PlanError, match=rf"mine\.toml.*{says}"):
        plan.load(str(file))
