"""Run directories as arrays: which tokens count, and what is said of those that do not."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from factories import FAST, PROMPT_IDS, SLOW, Server, Shape, comparison, single
from gates import reading, scored
from gates.evidence import Evidence, NotComparable
from loadgen.record import SCORE_DTYPE, Run

SMALL = Shape(passes=2, requests=8)


def load(path: Path, *, stock: Server = SLOW, candidate: Server = FAST, shape: Shape = SMALL) -> Evidence:
    return reading.load(comparison(path, np.random.default_rng(1), stock, candidate, shape))


def rescored(run: Run, profile: str, change: "np.ufunc | object") -> None:
    """Rewrites the candidate's first scores of a profile as `change` gives them."""
    file = run.path / "scores" / f"candidate-{profile}-0.npy"
    np.save(file, change(np.load(file)))  # type: ignore[operator]


def test_every_token_received_is_there_in_launch_order(tmp_path: Path) -> None:
    """Rows follow the replies as they were launched, positions rising, tokens those of the records."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=SMALL)
    found = reading.load(run)
    records = {int(record.id[:16], 16): record for record in run.records()}
    for arm in found.arms:
        assert [(one.pass_no, one.profile) for one in arm.passes] == [
            (0, "solo"),
            (0, "team"),
            (1, "solo"),
            (1, "team"),
        ]
        for one in arm.passes:
            sent = [reply.sent_ns for reply in one.replies]
            assert sent == sorted(sent)
            expected = [token for reply in one.replies for token in records[reply.request].token_ids or []]
            assert one.scored.rows["token_id"].tolist() == expected
            assert one.scored.reply.tolist() == sorted(one.scored.reply.tolist())
    assert found.warnings == []
    assert (found.ended, found.whole, found.looks) == (True, True, 2)


def test_tokens_of_failed_replies_count(tmp_path: Path) -> None:
    """Dropping what a timeout cut off would drop the long replies."""
    found = load(tmp_path / "run", candidate=Server(failing=1.0))
    for one in found.candidate.passes:
        assert {reply.failure for reply in one.replies} == {"connection_reset"}
        assert len(one.scored.rows) == sum(reply.tokens or 0 for reply in one.replies) > 0


def test_scores_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    """A scorer may write replies as they come back."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=SMALL)
    before = reading.load(run).candidate.passes[0].scored
    rescored(run, "solo", lambda rows: rows[::-1])
    after = reading.load(run).candidate.passes[0].scored
    assert after.rows.tobytes() == before.rows.tobytes()
    assert after.reply.tolist() == before.reply.tolist()


def test_an_appended_eos_counts(tmp_path: Path) -> None:
    """One more token behind the reply's last is the EOS that the engine did not return."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=SMALL)

    def with_eos(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        eos = rows[-1:].copy()
        eos["position"] += 1
        return np.concatenate([rows, eos])

    before = len(reading.load(run).candidate.passes[0].scored.rows)
    rescored(run, "solo", with_eos)
    one = reading.load(run).candidate.passes[0].scored
    assert (len(one.rows), one.dropped) == (before + 1, {})


def test_rows_of_other_requests_are_left_out(tmp_path: Path) -> None:
    """Warm-up and probes may be scored into the same file; only timed replies are judged."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=SMALL)
    before = len(reading.load(run).candidate.passes[0].scored.rows)
    strange = np.zeros(5, SCORE_DTYPE)
    rescored(run, "solo", lambda rows: np.concatenate([strange, rows]))
    assert len(reading.load(run).candidate.passes[0].scored.rows) == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[rows["request"] != rows["request"][0]], scored.NO_SCORES),
        (lambda rows: rows[1:], scored.IN_PART),
        (lambda rows: _null_first(rows), scored.IN_PART),
        (lambda rows: _other_token(rows), scored.OTHER_TOKENS),
    ],
    ids=["a reply not scored", "a position not scored", "a position null", "another token"],
)
def test_what_is_not_scored_is_counted_with_its_reason(tmp_path: Path, change: object, why: str) -> None:
    """One reply of eight, and the warning says why."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=SMALL)
    rescored(run, "solo", change)
    found = reading.load(run)
    assert found.candidate.passes[0].scored.dropped == {why: 1}
    assert found.warnings == [f"candidate: 1 of 32 replies are not judged by all their tokens: {why}."]


def _null_first(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    rows["ids"][0], rows["logprobs"][0], rows["logprob"][0] = -1, -np.inf, np.nan
    return rows


def _other_token(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    rows["token_id"][0] += 1
    return rows


def test_a_token_that_the_reference_calls_impossible_is_kept(tmp_path: Path) -> None:
    """Dropping by the token's own log-probability would drop exactly what speaks against the candidate."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=SMALL)

    def impossible(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        rows["logprob"][0] = -np.inf
        return rows

    rescored(run, "solo", impossible)
    assert reading.load(run).candidate.passes[0].scored.dropped == {}


def test_text_without_ids_is_counted(tmp_path: Path) -> None:
    """A text-only candidate gives no scored token, and it says so."""
    found = load(tmp_path / "run", candidate=Server(returns_ids=False, scored=False))
    assert found.candidate.passes[0].scored.dropped == {scored.NO_IDS: 8}


def test_prompts_that_differ_between_the_servers_are_a_broken_set_up(tmp_path: Path) -> None:
    """The same prompt id with other token ids: the two answer different questions."""
    found = load(tmp_path / "run", candidate=Server(prompt_ids=(*PROMPT_IDS, 9)))
    assert [warning.split(":")[0] for warning in found.warnings] == ["The set-up is broken"]
    assert not found.same_prompts
    assert "32 of 32 prompts" in found.warnings[0]


def test_a_killed_run_keeps_its_drained_passes(tmp_path: Path) -> None:
    """Without end.json, a pass without its closing border is left out of both arms, with a warning."""
    found = load(tmp_path / "run", shape=dataclasses.replace(SMALL, ended=None, drained=False))
    assert (found.ended, found.whole) == (False, False)
    assert [len(arm.passes) for arm in found.arms] == [3, 3]
    assert found.warnings == [
        f"{role}: passes that did not end are left out: team 1." for role in ("stock", "candidate")
    ]


def test_between_passes_a_missing_end_is_no_defect(tmp_path: Path) -> None:
    """The caller that drives says that it looks between two passes."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=dataclasses.replace(SMALL, ended=None))
    found = reading.load(run, between_passes=True)
    assert (found.ended, found.whole) == (False, True)


def test_an_interrupted_run_is_not_whole(tmp_path: Path) -> None:
    """Whoever says so: it has ended, and not by being done."""
    run = comparison(tmp_path / "run", np.random.default_rng(1), shape=dataclasses.replace(SMALL, ended="interrupted"))
    assert not reading.load(run, between_passes=True).whole


def test_two_runs_are_stock_and_candidate(tmp_path: Path) -> None:
    """Each gives its only endpoint, whatever its label; with one seed their prompts are the same."""
    stock = single(tmp_path / "a", np.random.default_rng(1), SLOW, SMALL)
    candidate = single(tmp_path / "b", np.random.default_rng(2), FAST, SMALL)
    found = reading.load(stock, candidate)
    assert [arm.role for arm in found.arms] == ["stock", "candidate"]
    assert len(list(found.pairs(None))) == 4
    assert found.paired and found.warnings == []


def test_runs_of_other_seeds_are_not_paired(tmp_path: Path) -> None:
    """One prompt id is then another prompt, so differing token ids mean nothing."""
    stock = single(tmp_path / "a", np.random.default_rng(1), SLOW, SMALL)
    other = dataclasses.replace(SMALL, seed=2)
    candidate = single(tmp_path / "b", np.random.default_rng(2), Server(prompt_ids=(5,)), other)
    found = reading.load(stock, candidate)
    assert not found.paired
    assert found.warnings == ["The two runs were asked for different prompts: replies are not paired by prompt."]


def test_one_endpoint_is_nothing_to_compare(tmp_path: Path) -> None:
    """A single run names what is missing, and two comparisons are refused."""
    one = single(tmp_path / "a", np.random.default_rng(1), SLOW, SMALL)
    two = comparison(tmp_path / "b", np.random.default_rng(1), shape=SMALL)
    with pytest.raises(NotComparable, match="Give the candidate's run as the second directory"):
        reading.load(one)
    with pytest.raises(NotComparable, match="holds 2 endpoints"):
        reading.load(one, two)
