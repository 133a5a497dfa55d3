"""What probes ask, made of what was seen, and what of their answers the gates take."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from probing import padded, probed, record

from factories import Floats, scored
from gates.probes import Probed, by_kind, own_logprobs, why_none
from loadgen import probes
from loadgen.probes import Material, Seen, fixed_text, greedy, logprobs, prefixes, repeat_audit, repeat_prefix
from loadgen.profile import Profile, ProfileError, load
from loadgen.record import SCORE_DTYPE, Logprob, Record

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
TEAM = load("team")
EVEN, SURE, THREE = (
    np.array([[0.5, 0.5, 0.0, 0.0]]),
    np.array([[1.0, 0.0, 0.0, 0.0]]),
    np.array([[0.7, 0.2, 0.1, 0.0]]),
)


def rows(laws: Floats, request: int = 1, drawn: int = 0) -> np.ndarray:
    """Scores of one reply, a law a position; the token drawn is always the same."""
    return scored(request, np.log(padded(np.maximum(laws, 1e-30))), np.full(len(laws), drawn))


def reply(number: int, ids: list[int] | None, prompt: list[int] | None = None) -> Record:
    given = {"prompt_token_ids": [number, 7] if prompt is None else prompt}
    return record(number, "greedy", f"team-0-{number}", ids, phase="timed", probe=None, **given)


def seen(count: int = 40, lanes: int = 8, profile: Profile = TEAM, laws: Floats = THREE) -> Seen:
    """A pass of so many replies of twelve tokens each, whose laws come over again."""
    records = [reply(number, [0] * 12) for number in range(1, count + 1)]
    parts = [rows(np.resize(laws, (12, 4)), number) for number in range(1, count + 1)]
    return Seen(profile, lanes, records, np.concatenate(parts))


def material(*found: Seen, speculates: bool = False) -> Material:
    return Material(found or (seen(),), speculates, seed=1)


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (EVEN, 0.25 / np.sqrt(0.25)),
        (SURE, 0.0),
        # s₂ = .54, s₃ = .352: moved = .49·.14 + .04·1.14 + .01·1.34, by chance .54 − .704 + .2916
        (THREE, (0.49 * 0.14 + 0.04 * 1.14 + 0.01 * 1.34) / np.sqrt(0.1276)),
    ],
    ids=["even", "sure", "three"],
)
def test_lambda_is_its_formula(law: Floats, expected: float) -> None:
    """Σ p²(1 − 2p + s₂)/√(s₂ − 2s₃ + s₂²)."""
    assert prefixes.weights(rows(law))[0] == pytest.approx(expected, rel=1e-5)


def test_what_is_not_listed_counts_as_one_cell_by_chance_and_not_at_all_when_moved() -> None:
    """Half on one token, half unlisted: λ = ¼(1 − 1 + ½)/√(½ − ½ + ¼)."""
    found = rows(EVEN)
    found["ids"][0, 1:], found["logprobs"][0, 1:] = -1, -np.inf

    assert prefixes.weights(found)[0] == pytest.approx(0.125 / 0.5, rel=1e-5)


def test_the_best_prefixes_are_taken_each_law_once() -> None:
    """By λ falling; of two places with one law the first; none where nothing is open."""
    laws = np.concatenate([SURE, THREE, EVEN, THREE, np.array([[0.9, 0.1, 0.0, 0.0]])])
    found = prefixes.chosen([rows(laws)], 10, lead=0)
    worth = prefixes.weights(rows(laws))

    assert [one.position for one in found] == sorted([1, 2, 4], key=lambda place: -worth[place])
    assert [one.position for one in prefixes.chosen([rows(laws)], 1, lead=0)] == [found[0].position]
    assert prefixes.chosen([], 10, lead=0) == []


def test_a_lead_is_of_nearly_sure_tokens_of_the_same_reply() -> None:
    """Not the first places of a reply, and not behind tokens that another reply would hardly draw."""
    laws = np.concatenate([EVEN, SURE, SURE, EVEN, THREE, THREE])
    parts = [rows(laws, request=5), rows(np.concatenate([EVEN, THREE]), request=6)]

    assert prefixes.chosen(parts, 10, lead=2) == [prefixes.Start(5, 3, 2)]


def test_repeat_prefix_asks_for_one_token_each_in_rounds() -> None:
    """Every prefix once, then all again; the prompt is the reply so far, and nothing is cut off."""
    laws = np.concatenate([THREE, EVEN, SURE])
    found = repeat_prefix.requests(material(seen(count=3, laws=laws)))
    firsts = found[:2]

    assert len(found) == 2 * repeat_prefix.DRAWS
    assert [one.prompt_id for one in found[:4]] == ["prefix-0", "prefix-1", "prefix-0", "prefix-1"]
    assert sorted(one.prompt.token_ids or [] for one in firsts) == [[1, 7], [1, 7, 0]]
    assert {(one.asked["max_tokens"], one.kind) for one in found} == {(1, "completions")}
    assert {name: found[0].asked[name] for name in NEUTRAL} == NEUTRAL


def test_of_a_speculating_server_the_replies_start_before_the_prefix_and_go_beyond() -> None:
    """One token before, and two after: one-token replies never run the verification."""
    laws = np.concatenate([SURE, SURE, SURE, THREE])
    found = repeat_prefix.requests(material(seen(count=2, laws=laws), speculates=True))

    assert {one.asked["max_tokens"] for one in found} == {4}
    assert {tuple(one.prompt.token_ids or []) for one in found} == {(1, 7, 0, 0)}


def test_lanes_are_taken_in_turn_and_start_at_once() -> None:
    """The first request of each lane is due at 0; the others when the one before has ended."""
    found = repeat_prefix.requests(material(seen(laws=np.concatenate([THREE, EVEN]))))

    assert Counter(one.lane for one in found) == dict.fromkeys(range(repeat_prefix.LANES), 4)
    assert [one.due_s for one in found] == [0.0] * repeat_prefix.LANES + [None] * (len(found) - repeat_prefix.LANES)


def test_one_scoring_request_a_place_is_enough() -> None:
    """Of 40 replies, those kept pass through every place with 16 draws, and no two through the same last one."""
    paths = [[0, 1]] * 20 + [[0, 2]] * 17 + [[3]] * 3
    replies = [record(number, "repeat_prefix", "prefix-0", ids) for number, ids in enumerate(paths)]
    kept = repeat_prefix.to_score(replies)

    assert [one.token_ids for one in kept] == [[0, 1]]
    assert {place for one in kept for place in repeat_prefix.places(one)} == {(), (0,)}


def test_greedy_asks_at_temperature_0() -> None:
    """One reply to each of 32 prompts of the pass, no longer than 256 tokens."""
    found = greedy.requests(material(seen(count=40)))

    assert len({one.prompt_id for one in found}) == len(found) == greedy.REPLIES
    assert {(one.asked["temperature"], one.asked["max_tokens"]) for one in found} == {(0.0, 256)}
    assert len(greedy.requests(material(seen(count=5)))) == 5


def test_one_request_in_twenty_asks_for_log_probabilities() -> None:
    """The others are ordinary, and which ask depends on the seed alone."""
    found = logprobs.requests(material(seen(count=10)))
    asking = [one.asked.get("logprobs") for one in found]

    assert Counter(asking) == {None: 114, 20: 6}
    assert asking == [one.asked.get("logprobs") for one in logprobs.requests(material(seen(count=10)))]
    assert {one.asked["max_tokens"] for one in found} == {TEAM.max_tokens}


def test_the_audit_asks_half_of_its_prompts_twice_at_once_and_half_one_after_the_other() -> None:
    """Twins are due at one moment on two lanes; the others follow each other on one lane."""
    found = repeat_audit.requests(material(seen(count=40)))
    lanes: dict[str, list[tuple[int, float | None]]] = {}
    for one in found:
        lanes.setdefault(one.prompt_id, []).append((one.lane, one.due_s))
    shapes = Counter((len({lane for lane, _ in both}), tuple(due for _, due in both)) for both in lanes.values())

    assert shapes == {(2, (0.0, 0.0)): 16, (1, (None, None)): 16}
    assert len({lane for both in lanes.values() for lane, due in both if due == 0.0}) == 32


def test_probes_are_driven_like_the_first_profile_with_some_lanes() -> None:
    """A lone lane shows nothing of what happens under load; where there is no other, it is taken."""
    solo, team = seen(lanes=1), seen(lanes=8)

    assert material(solo, team).shape is team
    assert material(solo).shape is solo


MODULES = [greedy, logprobs, repeat_audit, repeat_prefix]


@pytest.mark.parametrize("module", MODULES, ids=[one.__name__.rpartition(".")[2] for one in MODULES])
def test_nothing_to_make_it_of_is_no_request(module: probes.Module) -> None:
    """No reply came, or none with the prompt's token ids."""
    empty = Seen(TEAM, 8, [], None)
    nameless = Seen(TEAM, 8, [reply(1, [0, 0], prompt=[])], rows(THREE))

    assert (module.requests(material(empty)), module.requests(material(nameless))) == ([], [])


@pytest.mark.parametrize("name", [name for name in probes.NAMES if name != "fixed_text"])
def test_requests_are_pure(name: str) -> None:
    """The same material makes the same requests: both endpoints are asked one thing."""
    module = probes.load(name)  # type: ignore[arg-type]

    assert module.requests(material()) == module.requests(material())


def test_a_profile_with_a_probes_name_is_refused() -> None:
    """Their scores would lie under one name."""
    probes.check_names([TEAM])
    with pytest.raises(ProfileError, match="Give the profile another name"):
        probes.check_names([TEAM.model_copy(update={"name": "greedy"})])


def test_a_fixed_texts_record_holds_what_was_told_or_why_not() -> None:
    """The first token is the prompt, as nothing is said of it; −∞ is kept as None; a refusal is a failure."""
    from loadgen.dialects import Scored

    answer = [None, Scored(5, -0.5, [(5, -0.5)]), Scored(6, float("-inf"), [(5, -0.5)])]
    good = fixed_text.record("stock", "team", 0, [4, 5, 6], answer, (1, 2))
    bad = fixed_text.record("stock", "team", 0, [4, 5, 6], "400: no", (1, 2))

    assert (good.prompt_token_ids, good.token_ids, good.failure) == ([4], [5, 6], None)
    assert [one.logprob for one in good.logprobs or []] == [-0.5, None]
    assert bad.logprobs is None and bad.failure is not None
    assert (bad.failure.kind, bad.failure.detail) == ("error_body", "400: no")


def test_probes_are_kept_by_endpoint_and_kind_in_the_order_of_sending() -> None:
    """Each with its scores by request; timed records are no probes; what was never sent comes last."""
    late, early = record(1, "greedy", "a", [0], sent_ns=9), record(2, "greedy", "b", [0], sent_ns=3)
    unsent = record(3, "greedy", "c", None, sent_ns=None)
    scores = np.concatenate([rows(THREE, request=2), rows(THREE, request=1)])
    found = by_kind([late, unsent, early, reply(4, [0])], {("stock", "greedy", 0): scores})

    assert list(found) == [("stock", "greedy")]
    assert found["stock", "greedy"].records == (early, late, unsent)
    assert {number: len(part) for number, part in found["stock", "greedy"].scores.items()} == {1: 1, 2: 1}


def test_rows_are_taken_as_far_as_they_are_of_the_records_own_tokens() -> None:
    """Up to the first of another token, without alternatives, or out of place."""
    one = record(1, "greedy", "a", [0, 0, 0])
    whole = rows(np.resize(THREE, (3, 4)))
    other, empty, missing = whole.copy(), whole.copy(), whole[[0, 2]]
    other["token_id"][1] = 9
    empty["ids"][2], empty["logprobs"][2] = -1, -np.inf
    lengths = [len(Probed((one,), {1: part}).rows(one)) for part in (whole, other, empty, missing)]

    assert lengths == [3, 1, 2, 1]
    assert Probed((one,), {}).rows(one).dtype == np.dtype(SCORE_DTYPE)


OWN = [
    ([(5, -0.5), (6, None)], [5, 6], [-0.5, None]),
    ([(None, -0.5)], [5], [-0.5]),
    ([(7, -0.5)], [5], None),
    ([(5, -0.5)], [5, 6], None),
]


@pytest.mark.parametrize(
    ("given", "ids", "expected"), OWN, ids=["its own", "without ids", "of other tokens", "too few"]
)
def test_a_servers_own_log_probabilities_must_be_of_its_tokens(
    given: list[tuple[int | None, float | None]], ids: list[int], expected: list[float | None] | None
) -> None:
    """NaN where it gives none; None where they cannot be told to be of these tokens."""
    said = [Logprob(token_id=token, token=None, logprob=value, top=[]) for token, value in given]
    found = own_logprobs(record(1, "logprobs", "a", ids, logprobs=said))

    assert (None if found is None else [None if np.isnan(one) else one for one in found]) == expected


def test_what_is_missing_of_a_probe_is_said() -> None:
    """No probe, no ids, no scores; None where there are all."""
    one = record(1, "greedy", "a", [0])
    law = np.log(padded(THREE[:, :3]))
    said = [
        why_none("stock", found, "greedy")
        for found in (
            Probed((), {}),
            Probed((dataclasses.replace(one, token_ids=None),), {}),
            Probed((one,), {}),
            probed([one], [law]),
        )
    ]

    assert [None if why is None else why[:32] for why in said] == [
        "no probe greedy of stock: `loadg",
        "the probe greedy brought no toke",
        "the probe greedy of stock is not",
        None,
    ]
