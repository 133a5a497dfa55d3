"""Profiles: what is read, what is refused with which words, what the command line may change."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from loadgen.profile import Profile, ProfileError, load, overridden, validated
from loadgen.record import available

SMALL = {"name": "small", "lanes": 2, "requests": 4, "max_tokens": 16}


def small(**changes: Any) -> Profile:
    return validated({**SMALL, **changes}, where="small.toml")


def refusal(text: str, folder: Path) -> str:
    file = folder / "bad.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        load(str(file))
    return str(caught.value).replace(str(file), "bad.toml")


@pytest.mark.parametrize("name", available())
def test_shipped_profile_loads(name: str) -> None:
    """Every shipped profile is valid, bears its file's name and says what it is about."""
    profile = load(name)
    assert profile.name == name
    assert profile.about


def test_the_shape_of_each_workload() -> None:
    """solo has one lane, team eight, busy as many as nearly fill the KV cache; steady has none."""
    assert load("solo").lanes == 1
    assert load("team").lanes == 8
    assert load("busy").kv_share == 0.92
    assert load("steady").lanes is None


def test_a_profile_may_leave_its_name_to_its_file(tmp_path: Path) -> None:
    """The file's stem is the name where none is given."""
    file = tmp_path / "mine.toml"
    file.write_text("lanes = 2\nrequests = 4\nmax_tokens = 16\n")
    assert load(str(file)).name == "mine"


def test_every_sampling_field_is_asked_for() -> None:
    """What is not sent is inherited from the model's own files, so all of it is sent; a seed only when asked."""
    assert small().asked() == {
        "max_tokens": 16,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }


def test_optional_fields_are_sent_where_they_are_set() -> None:
    """A seed of 0 is a seed; ignore_eos is sent where it is on."""
    asked = small(sampling={"seed": 0, "ignore_eos": True}).asked()
    assert (asked["seed"], asked["ignore_eos"]) == (0, True)


@pytest.mark.parametrize("off", ["off", 0, -1])
def test_top_k_off_is_sent_one_way(off: object) -> None:
    """Three spellings of off are one in the records."""
    assert small(sampling={"top_k": off}).asked()["top_k"] == -1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lanes = 1\nrequests = 1", "max_tokens is missing."),
        ("lanes = 1\nrequests = -4\nmax_tokens = 1", "requests = -4: it should be greater than or equal to 1."),
        ("lane = 1", "unknown key lane. Did you mean lanes or name?"),
        ("lanes = 0\nrequests = 1\nmax_tokens = 1", "lanes = 0: allowed are a number from 1 up, or \"kv:SHARE\""),
        ("lanes = true\nrequests = 1\nmax_tokens = 1", "lanes = True: allowed are a number from 1 up"),
        ('lanes = "kv:1.2"\nrequests = 1\nmax_tokens = 1', "lanes = 'kv:1.2': allowed are"),
        ('lanes = "kv:.0"\nrequests = 1\nmax_tokens = 1', "lanes = 'kv:.0': allowed are"),
        ("[limits]\nidle_s = -3", "limits.idle_s = -3: it should be greater than 0."),
        ("[limits]\nidle = 3", "unknown key limits.idle. Did you mean idle_s? There are connect_s, first_token_s"),
        ("[arrivals]\nrate = 3", "unknown key arrivals.rate. Did you mean rate_per_s? There are kind, rate_per_s."),
        ("[arrivals]\nkind = \"gamma\"", "arrivals.kind = 'gamma': it should be 'poisson' or 'constant'."),
        ('endpoint = "responses"', "endpoint = 'responses': it should be 'completions' or 'chat'."),
        ("[sampling]\ntemperature = nan", "sampling.temperature = nan: it should be a finite number."),
        ("[sampling]\ntop_k = -2", "sampling.top_k = -2: it should be greater than or equal to -1."),
        ("[sampling]\nseed = 1\nrequest_seeds = true", "seed and request_seeds exclude each other"),
        ('[prompts]\nsource = "builtins"', "There is no prompt source 'builtins'. Did you mean builtin?"),
        ("[prompts]\nmax_word = 50", "unknown key prompts.max_word. Did you mean max_words? There are"),
        ("prompts = 3", "prompts = 3: a table [prompts] is expected"),
        ('max_tokens = "many"', "max_tokens = 'many': it should be a valid integer."),
        ('name = "a/b"', "name = 'a/b':"),
        ("lanes = ", "bad.toml is not readable as TOML"),
        ("x = " + 3000 * "[" + 3000 * "]", "bad.toml is not readable as TOML"),
        ("max_tokens = 1" + 30 * "0", "max_tokens ="),
        ("requests = 1" + 30 * "0", "requests ="),
        ("lanes = 1" + 30 * "0", "lanes ="),
        ("start_spread_ms = 1e300", "start_spread_ms = 1e+300"),
        ("[limits]\nidle_s = 1e300", "limits.idle_s = 1e+300"),
        ("[sampling]\ntop_k = 1" + 30 * "0", "sampling.top_k ="),
        ("[sampling]\nseed = 1" + 30 * "0", "sampling.seed ="),
        ("[arrivals]\nrate_per_s = 1e-300", "arrivals.rate_per_s = 1e-300"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_file_its_key_and_what_is_allowed(text: str, said: str, tmp_path: Path) -> None:
    """Whoever wrote the file is told where, what and what else, before anything is sent."""
    answer = refusal(text, tmp_path)
    assert said in answer
    assert all(line.startswith("bad.toml") for line in answer.splitlines())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arrivals": {"rate_per_s": 1}}, "give lanes (closed loop) or [arrivals] (open loop), one of the two"),
        ({"lanes": None}, "give lanes (closed loop) or [arrivals] (open loop), one of the two"),
        ({"requests_per_lane": 1}, "give requests or requests_per_lane, one of the two"),
        ({"requests": None}, "give requests or requests_per_lane, one of the two"),
        ({"lanes": 5}, "requests = 4 leaves some of 5 lanes without any"),
        ({"lanes": None, "arrivals": {"rate_per_s": 1}, "requests": None, "requests_per_lane": 2}, "give requests"),
    ],
)
def test_a_profile_has_one_shape(changes: dict[str, Any], said: str) -> None:
    """Two shapes in one profile, or none, is a mistake rather than a matter of precedence."""
    with pytest.raises(ProfileError) as caught:
        small(**changes)
    assert said in str(caught.value)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    """One round of mending is enough."""
    answer = refusal("lanes = 0\nrequests = -1\nmax_tokens = 0", tmp_path)
    assert len(answer.splitlines()) == 3


def test_an_unknown_profile_is_answered_with_the_nearest() -> None:
    """A mistyped name costs one look."""
    with pytest.raises(ProfileError, match=r"no profile 'teem'.*Did you mean team"):
        load("teem")


def test_a_profile_is_frozen() -> None:
    """What was checked cannot change afterwards."""
    with pytest.raises(ValidationError, match="frozen"):
        small().max_tokens = 3


@given(st.integers(1, 50), st.integers(1, 500), st.integers(1, 4096), st.floats(0, 3))
@settings(deadline=None)
def test_a_resolved_profile_reads_back(lanes: int, requests: int, max_tokens: int, temperature: float) -> None:
    """What run.json holds of a profile gives that profile again, with the same digest."""
    profile = small(
        lanes=lanes, requests=lanes + requests, max_tokens=max_tokens, sampling={"temperature": temperature}
    )
    again = validated(profile.model_dump(mode="json"), where="run.json")
    assert profile == again
    assert profile.digest() == again.digest()


def test_the_digest_is_of_the_load_alone() -> None:
    """Spelling out a default or rewording `about` keeps it; any change of the load does not."""
    same = [small(), small(about="other words"), small(limits={"idle_s": 60}), small(prompts={"source": "builtin"})]
    other = [small(lanes=1), small(max_tokens=17), small(limits={"idle_s": 61}), small(sampling={"top_p": 0.9})]
    assert len({profile.digest() for profile in same}) == 1
    assert len({profile.digest() for profile in [small(), *other]}) == 5


def test_no_option_changes_nothing() -> None:
    """Options that were not given are None."""
    assert small() == overridden(small(), {"lanes": None, "max_tokens": None})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_tokens": 9, "requests": 6}, small(max_tokens=9, requests=6)),
        ({"temperature": 0.5, "top_k": 5}, small(sampling={"temperature": 0.5, "top_k": 5})),
        ({"requests_per_lane": 3}, small(requests=None, requests_per_lane=3)),
        ({"request_rate": 2.5}, small(lanes=None, arrivals={"kind": "poisson", "rate_per_s": 2.5})),
        ({"endpoint": "chat"}, small(endpoint="chat")),
    ],
)
def test_options_lie_over_the_profile(changes: dict[str, Any], expected: Profile) -> None:
    """A changed profile is what a file with the change would have given; one shape replaces the other."""
    assert expected == overridden(small(), changes)


def test_a_rate_keeps_the_kind_of_arrivals_and_lanes_replace_them() -> None:
    """--request-rate on an open loop changes its rate alone; --lanes closes the loop."""
    constant = small(lanes=None, arrivals={"kind": "constant", "rate_per_s": 1})
    assert small(lanes=None, arrivals={"kind": "constant", "rate_per_s": 9}) == overridden(
        constant, {"request_rate": 9}
    )
    assert small(lanes=3) == overridden(constant, {"lanes": 3})


def test_options_keep_settings_of_the_prompts() -> None:
    """Prompts with settings of their own survive an unrelated option."""
    profile = small(prompts={"source": "synthetic", "input_tokens": 64})
    assert profile.prompts == overridden(profile, {"lanes": 1}).prompts


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lanes": 3, "request_rate": 2.0}, "--lanes and --request-rate exclude each other"),
        ({"requests": 3, "requests_per_lane": 2}, "--requests and --requests-per-lane exclude each other"),
        ({"lanes": 50}, "at least as many requests as lanes"),
        ({"temperature": -1.0}, "profile small with the options given: sampling.temperature = -1.0"),
        ({"request_rate": float("inf")}, "arrivals.rate_per_s = inf: it should be a finite number"),
    ],
)
def test_options_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    """The command line is checked as a file is."""
    with pytest.raises(ProfileError) as caught:
        overridden(small(), changes)
    assert said in str(caught.value)


def test_requests_of_a_pass() -> None:
    """Counted by the pass or by the lane; a found number of lanes never leaves one without a request."""
    assert small().count(2) == 4
    assert load("busy").count(200) == 1600
    assert small(lanes="kv:0.5").count(30) == 30
    assert load("steady").count(None) == 240
