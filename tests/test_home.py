"""Where profiles lie, and what is suggested for a name that is none."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.cli.list import command
from loadgen.record import available, find, home, nearest


def test_shipped_profiles_are_listed_by_name() -> None:
    """The three profiles of a comparison, and an open loop, come with the program."""
    assert {"solo", "team", "busy", "steady"} <= set(available())
    assert available() == sorted(available())


def test_a_name_is_found_in_the_shipped_folder() -> None:
    """A bare name means the shipped profile, whatever lies in the current folder."""
    assert home.profiles_folder() / "team.toml" == find("team")


def test_a_path_is_found_as_it_stands(tmp_path: Path) -> None:
    """A path may name any file; a shipped name is no path."""
    file = tmp_path / "mine.toml"
    file.write_text("")
    assert file == find(str(file))


def test_an_installed_package_holds_its_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel packs the folder inside loadgen; there it goes before a folder beside the packages."""
    (tmp_path / "loadgen" / "profiles").mkdir(parents=True)
    (tmp_path / "profiles").mkdir()
    monkeypatch.setattr(home, "_PACKAGE", tmp_path / "loadgen")
    assert tmp_path / "loadgen" / "profiles" == home.profiles_folder()


@pytest.mark.parametrize("name", ["nowhere", "./team", "plans", ""])
def test_what_is_neither_is_none(name: str) -> None:
    """Missing is None: a folder, an empty name and a path to nothing are no profile."""
    assert find(name) is None


def test_the_nearest_name_comes_first() -> None:
    """A mistyped name is answered by what was likely meant, and by all there is."""
    assert nearest("teem", ["solo", "team", "busy"]) == "Did you mean team? There are busy, solo, team."


def test_nothing_near_lists_all() -> None:
    """Without a likely name there is still the list, and an empty list says so."""
    assert nearest("xyz", ["solo", "team"]) == "There are solo, team."
    assert nearest("xyz", []) == "There are none."


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=10), max_size=5))
@settings(deadline=None)
def test_nearest_names_everything_there_is(name: str, known: list[str]) -> None:
    """Whatever is asked for, every known name is in the sentence."""
    assert all(each in nearest(name, known) for each in known)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("profiles", "team"),
        ("plans", "contest"),
        ("recipes", "vllm-ngram"),
        ("dialects", "openai"),
        ("checks", "likelihood"),
    ],
)
def test_list_prints_one_line_an_entry(kind: str, name: str) -> None:
    """`loadgate list` names every kind's entries as other commands take them."""
    done = CliRunner().invoke(command, [kind])
    assert done.exit_code == 0
    assert name in [line.split()[0] for line in done.stdout.splitlines()]


def test_list_shows_what_a_profile_is_about() -> None:
    """The line beside a name is the file's own `about`."""
    done = CliRunner().invoke(command, ["profiles", "--json"])
    assert '{"name":"team","about":"a small team: eight lanes busy"}' in done.stdout


def test_list_of_an_unknown_kind_names_the_nearest() -> None:
    """A mistyped kind is wrong usage, answered with what there is."""
    done = CliRunner().invoke(command, ["profile"])
    assert done.exit_code == 2
    assert "Did you mean profiles? There are checks, dialects, plans, profiles, recipes." in done.stderr
