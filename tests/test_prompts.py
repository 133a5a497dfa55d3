"""Prompts: fresh in every pass, the same on every endpoint, exact where a length is asked for."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen import prompts
from loadgen.profile import ProfileError, load
from loadgen.prompts import Prompt, PromptsError, builtin, jsonl, synthetic
from loadgen.seeds import derived


def bodies(made: list[Prompt]) -> list[str]:
    return [prompt.messages[0]["content"] for prompt in made if prompt.messages]


def pieces(text: str) -> list[int]:
    """A tokenizer with a special token in front, several tokens a word and spaces that belong to words."""
    return [1, *(derived(0, piece, bits=15) for piece in re.findall(r" ?[A-Za-z]{1,5}|\d{1,3}|\s|.", text))]


def characters(text: str) -> list[int]:
    return [ord(character) for character in text]


def words(text: str) -> list[int]:
    return [derived(0, word, bits=15) for word in text.split()]


def pairs(text: str) -> list[int]:
    """Counts grow by two at every second character: some lengths are reached by no text."""
    return characters(text[: len(text) // 2 * 2])


def lines(file: Path, *rows: object) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def file_settings(file: Path, **passes: int) -> Any:
    [reserved] = prompts.reserve([(jsonl.Settings(path=file), passes)])
    return reserved


# builtin


def test_no_two_passes_share_a_builtin_prompt() -> None:
    """25,000 prompts of 50 passes are all different, and so are nearly all of their first ten words."""
    made = [
        body for pass_no in range(50) for body in bodies(prompts.make(builtin.Settings(), 7, f"team-{pass_no}", 500))
    ]
    assert len(set(made)) == 25_000
    fronts = Counter(" ".join(body.split()[:10]) for body in made)
    assert sum(count for count in fronts.values() if count > 1) < 250


def test_builtin_prompts_vary_in_kind_and_length() -> None:
    """10 to 120 words, every kind a fifth, no length preferred much."""
    made = bodies(prompts.make(builtin.Settings(), 7, "solo-0", 2000))
    lengths = [len(body.split()) for body in made]
    assert min(lengths) >= 10
    assert max(lengths) <= 120
    shares = [sum(low <= length < low + 30 for length in lengths) / 2000 for low in (0, 30, 60, 90)]
    assert all(0.12 < share < 0.35 for share in shares)


def test_every_building_block_is_used() -> None:
    """No opening or detail lies idle, and no placeholder is left open."""
    made = prompts.make(builtin.Settings(), 7, "solo-0", 3000)
    assert not [prompt.text for prompt in made if prompt.text and re.search(r"[{}]", prompt.text)]
    text = "\n".join(bodies(made))
    assert not re.search(r"\b[Aa] [aeiou]", text)


def test_builtin_text_ends_with_a_cue() -> None:
    """A model without a chat template goes on from the cue; a chat needs none."""
    prompt = prompts.make(builtin.Settings(), 7, "solo-0", 1)[0]
    assert prompt.text is not None
    assert prompt.messages is not None
    body, _, cue = prompt.text.rpartition("\n\n")
    assert prompt.messages == [{"role": "user", "content": body}]
    assert cue


@given(st.integers(0, 2**40), st.text(max_size=8), st.integers(1, 5), st.integers(40, 200))
@settings(max_examples=50, deadline=None)
def test_builtin_prompts_are_a_function_of_seed_and_pass(seed: int, key: str, count: int, most: int) -> None:
    """Both endpoints get the same prompts, and asking for more changes none of the first."""
    shape = builtin.Settings(max_words=most)
    made = prompts.make(shape, seed, key, count)
    assert made == prompts.make(shape, seed, key, count + 3)[:count]
    assert all(len(body.split()) <= most for body in bodies(made))


def test_another_seed_gives_other_prompts() -> None:
    """Two runs with two seeds share nothing either."""
    one, other = (set(bodies(prompts.make(builtin.Settings(), seed, "team-0", 200))) for seed in (1, 2))
    assert not one & other


# synthetic


@given(st.integers(6, 300), st.integers(0, 3), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_drawn_ids_have_the_length_and_the_range(length: int, spread: int, seed: int) -> None:
    """Exact counts need no tokenizer where the ids are drawn from a range."""
    shape = synthetic.Settings(input_tokens=length, spread=spread, ids=(1000, 2_001_000))
    for prompt in prompts.make(shape, seed, "team-0", 5):
        assert prompt.token_ids is not None
        assert abs(len(prompt.token_ids) - length) <= spread
        assert all(1000 <= each <= 2_001_000 for each in prompt.token_ids)


def test_lengths_spread_evenly() -> None:
    """Every length of input_tokens ± spread comes about as often: 5 lengths, 1000 prompts, 200 each ± 5 sigma."""
    shape = synthetic.Settings(input_tokens=20, spread=2, ids=(1000, 2000))
    counts = Counter(len(prompt.token_ids or ()) for prompt in prompts.make(shape, 3, "team-0", 1000))
    assert set(counts) == {18, 19, 20, 21, 22}
    assert all(abs(count - 200) < 5 * 12.7 for count in counts.values())


@pytest.mark.parametrize("tokenize", [pieces, characters, words], ids=lambda tokenize: tokenize.__name__)
@pytest.mark.parametrize("length", [16, 17, 64, 333])
def test_text_has_exactly_the_tokens_asked_for(length: int, tokenize: Any) -> None:
    """The server's own tokenizer counts the text, special tokens included."""
    for prompt in prompts.make(synthetic.Settings(input_tokens=length, form="text"), 3, "team-0", 5, tokenize):
        assert prompt.text is not None
        assert length == len(tokenize(prompt.text))


@pytest.mark.parametrize("length", [16, 500])
def test_ids_of_real_text_are_cut_to_length(length: int) -> None:
    """Without a range the ids are those of natural text, the special token in front."""
    for prompt in prompts.make(synthetic.Settings(input_tokens=length), 3, "team-0", 5, pieces):
        assert prompt.token_ids is not None
        assert length == len(prompt.token_ids)
        assert prompt.token_ids[0] == 1


@pytest.mark.parametrize(
    "shape",
    [
        synthetic.Settings(input_tokens=16, form="text"),
        synthetic.Settings(input_tokens=16),
        synthetic.Settings(input_tokens=16, ids=(0, 30)),
    ],
    ids=["text", "ids of text", "drawn ids"],
)
def test_no_two_passes_share_a_synthetic_prompt(shape: synthetic.Settings) -> None:
    """Even the shortest allowed prompts never come twice."""
    made = [repr(prompt) for pass_no in range(5) for prompt in prompts.make(shape, 3, f"team-{pass_no}", 60, pieces)]
    assert len(set(made)) == 300


def test_without_a_tokenizer_a_range_is_asked_for() -> None:
    """Guessing with another tokenizer would miss the length: it is refused with the way out."""
    with pytest.raises(PromptsError, match="offers no /tokenize"):
        prompts.make(synthetic.Settings(input_tokens=64), 3, "team-0", 1)


def test_a_length_that_no_text_has_is_refused() -> None:
    """The search ends, and says what to do instead."""
    with pytest.raises(PromptsError, match="exactly 33 tokens"):
        prompts.make(synthetic.Settings(input_tokens=33, form="text"), 3, "team-0", 1, pairs)


@pytest.mark.parametrize("form", ["ids", "text"])
def test_a_tokenizer_that_counts_nothing_is_broken(form: Any) -> None:
    """An empty answer from /tokenize ends the search rather than prolonging it for ever."""
    with pytest.raises(PromptsError, match="it is broken"):
        prompts.make(synthetic.Settings(input_tokens=33, form=form), 3, "team-0", 1, lambda text: [])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("input_tokens = 20\nspread = 20", "spread = 20 would make prompts of 0 tokens"),
        ("input_tokens = 3\nids = [0, 9]", "too few different prompts of 3 tokens"),
        ("input_tokens = 64\nids = [9, 3]", "too few different prompts"),
        ("input_tokens = 8", "give at least 16 tokens, or ids = [first, last]"),
        ('input_tokens = 64\nids = [0, 900]\nform = "text"', 'form = "ids" only'),
        ("input_tokens = -1", "prompts.input_tokens = -1: it should be greater than or equal to 1."),
        ("", "prompts.input_tokens is missing."),
    ],
)  # fmt: skip
def test_synthetic_settings_that_cannot_work_are_refused(table: str, said: str, tmp_path: Path) -> None:
    """A profile with them is refused as it is read."""
    file = tmp_path / "mine.toml"
    file.write_text(f'lanes = 1\nrequests = 1\nmax_tokens = 1\n[prompts]\nsource = "synthetic"\n{table}\n')
    with pytest.raises(ProfileError) as caught:
        load(str(file))
    assert said in str(caught.value)


# jsonl


def test_every_form_of_a_line_is_read(tmp_path: Path) -> None:
    """Text, ids, messages; max_tokens where given; empty lines are none; U+2028 inside a text ends no line."""
    file = lines(
        tmp_path / "p.jsonl",
        {"prompt": "one"},
        {"prompt": [5, 6], "max_tokens": 3},
        {"messages": [{"role": "user", "content": "three"}]},
    )
    with file.open("a", encoding="utf-8") as handle:
        handle.write('\n{"prompt": "four\u2028lines"}')
    expected = [
        Prompt(text="one"),
        Prompt(token_ids=[5, 6], max_tokens=3),
        Prompt(messages=[{"role": "user", "content": "three"}]),
        Prompt(text="four\u2028lines"),
    ]
    assert expected == prompts.make(file_settings(file, a=4), 0, "a", 4)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_passes_take_disjoint_slices(tmp_path_factory: pytest.TempPathFactory, counts: list[int]) -> None:
    """Each pass has its own lines, warm-up included, also where two profiles read one file."""
    file = lines(tmp_path_factory.mktemp("j") / "p.jsonl", *({"prompt": f"p{i}"} for i in range(2 * sum(counts))))
    passes = {f"pass-{number}": count for number, count in enumerate(counts)}
    source = jsonl.Settings(path=file)
    reserved = prompts.reserve([(source, passes), (source, passes)])
    taken = [
        prompt.text
        for each in reserved
        for key, count in passes.items()
        for prompt in prompts.make(each, 0, key, count)
    ]
    assert [f"p{i}" for i in range(2 * sum(counts))] == taken


def test_more_passes_are_set_aside_after_the_first(tmp_path: Path) -> None:
    """A later reservation moves no slice that was given, and keeps off the other profile's."""
    file = lines(tmp_path / "p.jsonl", *({"prompt": f"p{i}"} for i in range(12)))
    one, two = prompts.reserve([(jsonl.Settings(path=file), {"a-0": 3}), (jsonl.Settings(path=file), {"b-0": 3})])
    one, two = prompts.reserve([(one, {"a-0": 3, "a-1": 3}), (two, {"b-1": 3})])
    texts = [
        prompt.text
        for source, key in [(one, "a-0"), (two, "b-0"), (one, "a-1"), (two, "b-1")]
        for prompt in prompts.make(source, 0, key, 3)
    ]
    assert len(set(texts)) == 12
    assert texts[:3] == ["p0", "p1", "p2"]


def test_a_pass_that_grew_gets_a_slice_anew(tmp_path: Path) -> None:
    """The lanes of a busy profile are found after the first reservation; its passes are counted again then."""
    file = lines(tmp_path / "p.jsonl", *({"prompt": f"p{i}"} for i in range(9)))
    [early] = prompts.reserve([(jsonl.Settings(path=file), {"warmup": 2, "busy-0": 0, "busy-1": 0})])
    [late] = prompts.reserve([(early, {"busy-0": 3, "busy-1": 3})])
    assert [prompt.text for prompt in prompts.make(late, 0, "busy-0", 3)] == ["p2", "p3", "p4"]
    assert [prompt.text for prompt in prompts.make(late, 0, "busy-1", 3)] == ["p5", "p6", "p7"]


def test_a_file_with_too_few_lines_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """Before the start: how many there are, how many it takes, what to do. Lines that repeat count once."""
    file = lines(tmp_path / "p.jsonl", *({"prompt": f"p{i % 90}"} for i in range(100)))
    with pytest.raises(
        PromptsError, match=r"has 90 different prompts, and the passes asked for need 104.*Add 14 lines"
    ):
        file_settings(file, warmup=8, a=48, b=48)


def test_a_pass_without_a_slice_is_refused(tmp_path: Path) -> None:
    """Rather than repeat another pass's prompts."""
    file = lines(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b"})
    with pytest.raises(PromptsError, match="Pass b asks for 1 prompts"):
        prompts.make(file_settings(file, a=1), 0, "b", 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a", "messages": []}', "line 2: messages"),
        ('{"text": "a"}', "line 2: text: Extra inputs"),
        ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', 'give "prompt" or "messages"'),
        ("{}", 'give "prompt" or "messages"'),
        ('{"prompt": [1, -2]}', "line 2: prompt"),
        ('{"prompt": "a", "max_tokens": 0}', "line 2: max_tokens"),
        ("not JSON", "line 2: Invalid JSON"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    """The file, the line, what a line should be."""
    file = lines(tmp_path / "p.jsonl", {"prompt": "a"})
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(PromptsError) as caught:
        file_settings(file, a=2)
    assert said in str(caught.value)
    assert 'A line is {"prompt": "text" | [ids]}' in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Found out before the start, with the whole path."""
    with pytest.raises(PromptsError, match=r"nowhere\.jsonl.*No such file"):
        file_settings(tmp_path / "nowhere.jsonl", a=1)


def test_a_profiles_file_lies_beside_it_and_counts_by_content(tmp_path: Path) -> None:
    """A relative path starts at the profile; two hosts with the same lines have the same digest."""
    digests = []
    for host in ("one", "two"):
        folder = tmp_path / host
        folder.mkdir()
        lines(folder / "p.jsonl", {"prompt": "a"})
        text = 'lanes = 1\nrequests = 1\nmax_tokens = 1\n[prompts]\nsource = "jsonl"\npath = "p.jsonl"\n'
        (folder / "mine.toml").write_text(text)
        profile = load(str(folder / "mine.toml"))
        [reserved] = prompts.reserve([(profile.prompts, {"mine-0": 1})])
        digests += [profile.digest(), profile.model_copy(update={"prompts": reserved}).digest()]
    assert len(set(digests)) == 1


def test_sources_without_an_end_reserve_nothing() -> None:
    """The builtin generator never runs out."""
    assert prompts.reserve([(builtin.Settings(), {"a": 10**9})]) == [builtin.Settings()]
