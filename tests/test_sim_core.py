from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from servers.sim.core import Engine, StepLog
from servers.sim.sampling import Sampling
from servers.sim.sequence import Emission, Job, Sequence, Text
from servers.sim.settings import Settings
from servers.sim.tokenizer import decode

MS = 1_000_000


def engine(**settings: Any) -> Engine:
    return Engine(Settings(rows=64, **settings), np.random.default_rng(settings.get("seed", 0)))


def job(prompt: int = 10, max_tokens: int = 5, **fields: Any) -> Job:
    """A request that never ends before max_tokens, unless told otherwise."""
    return Job(prompt=list(range(1, prompt + 1)), max_tokens=max_tokens, **{"ignore_eos": True, **fields})


def drain(engine: Engine, then: Callable[[Emission], None] = lambda emission: None) -> None:
    while (start := engine.next_start()) is not None:
        for emission in engine.finish(engine.begin(start), 0):
            then(emission)


def spans(engine: Engine) -> list[tuple[float, float]]:
    return [(step.start_ns / MS, step.end_ns / MS) for step in engine.steps]


def test_a_lone_request_costs_what_the_model_says() -> None:
    """10 prompt tokens: 10 + .1 + 10 · .02 ms; then 10 + .1 + .05 ms a token; it begins when it comes."""
    sim = engine()
    sim.submit(job(prompt=10, max_tokens=3), 5 * MS)
    drain(sim)
    assert spans(sim) == [(5, 15.3), (15.3, 25.45), (25.45, 35.6)]


def test_a_request_that_comes_during_a_step_joins_the_next() -> None:
    """Its prompt is computed beside the others' tokens, and paid by all: 10 + 2 · .1 + .05 + 20 · .02 ms."""
    sim = engine()
    sim.submit(job(prompt=10, max_tokens=3), 0)
    sim.finish(sim.begin(0), 0)
    sim.submit(job(prompt=20, max_tokens=2), 10 * MS)
    sim.submit(job(prompt=20, max_tokens=1), 30 * MS)
    drain(sim)
    # Ends of the steps: 10.3; 10.65 more with the second's prompt; 10.3 more with one token of each; then the third's.
    assert [(step.sequences, step.tokens, step.prefill_tokens) for step in sim.steps] == [
        (1, 0, 10),
        (2, 1, 20),
        (2, 2, 0),
        (1, 0, 20),
    ]
    assert spans(sim) == [(0, 10.3), (10.3, 20.95), (20.95, 31.25), (31.25, 41.75)]


def test_a_step_takes_in_nothing_that_came_after_its_start() -> None:
    """A step that begins late in real time still begins at its modelled time, with what had come by then."""
    sim = engine()
    first = sim.submit(job(max_tokens=4), 0)
    sim.finish(sim.begin(0), 0)
    late = sim.submit(job(), 11 * MS)
    assert sim.next_start() == 10.3 * MS
    step = sim.begin(round(10.3 * MS))
    assert [emission.sequence for emission in step.emissions] == [first]
    assert list(sim.waiting) == [late]


def test_drafting_costs_by_position_and_verifying_by_token() -> None:
    """Two sequences drafting four: 10 + 2 · .1 + 10 · .05 + 4 · .8 ms; near its end a reply drafts what it can use."""
    sim = engine(speculative=4)
    sim.submit(job(max_tokens=60), 0)
    sim.submit(job(max_tokens=60), 0)
    sim.finish(sim.begin(0), 0)
    step = sim.begin(sim.next_start() or 0)
    assert (step.log.tokens, step.log.draft_positions, step.log.drafts, step.log.draft_tokens) == (10, 4, 2, 8)
    assert step.log.end_ns - step.log.start_ns == 13.9 * MS
    short = engine(speculative=4)
    short.submit(job(max_tokens=3), 0)
    drain(short)
    assert [step.draft_tokens for step in short.steps][:2] == [0, 1]


def test_counters_agree_with_the_step_log() -> None:
    """Tokens are the drafted steps' accepted and further ones plus those of steps without a draft."""
    sim = engine(speculative=4, seed=3)
    sequences = [sim.submit(job(max_tokens=40, ignore_eos=i % 2 == 0), i * MS) for i in range(20)]
    drain(sim)
    counters, steps = sim.counters, list(sim.steps)
    assert counters.generation_tokens == sum(len(sequence.tokens) for sequence in sequences)
    assert counters.generation_tokens == sum(step.emitted for step in steps)
    assert counters.accepted_tokens == sum(step.accepted for step in steps) == counters.accepted_at.total()
    assert counters.draft_tokens == sum(step.draft_tokens for step in steps)
    assert counters.drafts == sum(step.drafts for step in steps)
    assert counters.modelled_ns == sum(step.end_ns - step.start_ns for step in steps)
    assert counters.prompt_tokens == 200
    assert counters.finished.total() == 20
    assert counters.accepted_at[0] >= counters.accepted_at[3] > 0


def test_no_more_than_max_num_seqs_run() -> None:
    """The others wait in the order in which they came."""
    sim = engine(max_num_seqs=2)
    sequences = [sim.submit(job(max_tokens=2), i) for i in range(5)]
    sim.begin(10)
    assert sim.running == sequences[:2]
    assert list(sim.waiting) == sequences[2:]


def test_a_prompt_waits_until_it_fits() -> None:
    """Nobody overtakes the first in the queue, however small; memory is counted in blocks of 16."""
    sim = engine(kv_cache_tokens=64, max_model_len=64)
    sim.submit(job(prompt=33, max_tokens=3), 0)  # three of four blocks
    big, small = sim.submit(job(prompt=17, max_tokens=1), 0), sim.submit(job(prompt=1, max_tokens=1), 0)
    sim.finish(sim.begin(0), 0)
    assert (sim.kv_usage, list(sim.waiting)) == (0.75, [big, small])
    drain(sim)
    assert [step.sequences for step in sim.steps] == [1, 1, 1, 2]
    assert sim.kv_usage == 0


def test_a_full_cache_preempts_the_newest_and_recomputes_it() -> None:
    """It loses its memory, not its reply: later its prompt and reply are computed again, and it goes on."""
    sim = engine(kv_cache_tokens=64, max_model_len=64)
    old, new = sim.submit(job(prompt=31, max_tokens=20), 0), sim.submit(job(prompt=31, max_tokens=20), 0)
    emitted: dict[int, list[int]] = {id(old): [], id(new): []}
    drain(sim, lambda emission: emitted[id(emission.sequence)].extend(emission.tokens))
    # Both hold two blocks; at 33 tokens the older takes a third, and there is no fourth for the newer.
    assert sim.counters.preemptions == 1
    assert [step.prefill_tokens for step in sim.steps if step.prefill_tokens] == [62, 33]
    assert (len(old.tokens), len(new.tokens)) == (20, 20)
    assert emitted == {id(old): old.tokens, id(new): new.tokens}
    assert sim.counters.prompt_tokens == 62
    assert sim.free_blocks == sim.total_blocks


@pytest.mark.parametrize("kv_cache_tokens", [128, 4096])
def test_preemption_keeps_the_text(kv_cache_tokens: int) -> None:
    """Seeded replies are the same in a cache that is always too small and in one that never is."""
    sim = engine(kv_cache_tokens=kv_cache_tokens, max_model_len=128)
    sequences = [sim.submit(job(prompt=20 + i, max_tokens=50, seed=i), 0) for i in range(8)]
    drain(sim)
    assert (sim.counters.preemptions > 3) == (kv_cache_tokens == 128)
    roomy = engine(kv_cache_tokens=100_000, max_model_len=128)
    expected = [roomy.submit(job(prompt=20 + i, max_tokens=50, seed=i), 0) for i in range(8)]
    drain(roomy)
    assert [sequence.tokens for sequence in sequences] == [sequence.tokens for sequence in expected]


def test_a_long_crowd_through_a_small_cache_ends_well() -> None:
    """Speculating, preempting and aborting for a thousand steps leaves no block and no sequence behind."""
    sim = engine(speculative=3, kv_cache_tokens=256, max_model_len=128, max_num_seqs=16, seed=8)
    rng = np.random.default_rng(8)
    live: list[Sequence] = []
    for _ in range(1000):
        if len(live) < 24:
            shape = job(int(rng.integers(1, 60)), int(rng.integers(1, 60)), ignore_eos=bool(rng.integers(2)))
            live.append(sim.submit(shape, sim.next_start() or 0))
        step = sim.begin(sim.next_start() or 0)
        if rng.random() < 0.1:
            sim.abort(live.pop(int(rng.integers(len(live)))))
        for emission in sim.finish(step, 0):
            if emission.finish_reason:
                live.remove(emission.sequence)
        assert sim.free_blocks + sum(sequence.blocks for sequence in sim.running) == sim.total_blocks
        assert all(sequence.blocks == 0 for sequence in sim.waiting)
    drain(sim)
    assert sim.counters.preemptions > 20
    assert (sim.kv_usage, sim.running, list(sim.waiting)) == (0, [], [])


def test_an_abort_frees_memory_at_once_and_emits_nothing_more() -> None:
    """Whether it waits or runs, also in the middle of a step; twice is the same as once."""
    sim = engine(max_num_seqs=1)
    running, waiting = sim.submit(job(), 0), sim.submit(job(), 0)
    step = sim.begin(0)
    sim.abort(waiting)
    sim.abort(running)
    sim.abort(running)
    assert sim.kv_usage == 0
    assert sim.finish(step, 0) == []
    assert sim.next_start() is None
    assert sim.counters.finished == {"abort": 2}
    assert sim.counters.generation_tokens == 0


def test_finish_reasons() -> None:
    """length at max_tokens; stop at the end of sequence, which stays among the tokens and has no text."""
    sim = engine(seed=1)
    texts: dict[int, str] = {}

    def keep(emission: Emission) -> None:
        texts[id(emission.sequence)] = texts.get(id(emission.sequence), "") + emission.text

    short = sim.submit(job(max_tokens=2, ignore_eos=True), 0)
    ending = [sim.submit(Job(prompt=[i], max_tokens=2000), 0) for i in range(1, 9)]
    drain(sim, keep)
    assert short.finish_reason == "length"
    assert all(sequence.finish_reason == "stop" and sequence.tokens[-1] == 0 for sequence in ending)
    assert [texts[id(sequence)] for sequence in ending] == [decode(sequence.tokens) for sequence in ending]


@pytest.mark.parametrize("speculative", [0, 4])
def test_a_stop_string_ends_the_reply_and_is_not_shown(speculative: int) -> None:
    """What follows in the same step is dropped; token ids keep the token that completed it."""
    sim = engine(speculative=speculative, seed=5)
    whole = sim.submit(job(max_tokens=60, seed=5), 0)
    drain(sim)
    text = decode(whole.tokens)
    stop = text[30:36]
    emissions: list[Emission] = []
    stopped = sim.submit(job(max_tokens=60, seed=5, stop=("never there", stop)), 10**9)
    drain(sim, emissions.append)
    assert "".join(emission.text for emission in emissions) == text[: text.index(stop)]
    assert (emissions[-1].finish_reason, emissions[-1].stop_reason) == ("stop", stop)
    assert stopped.tokens == whole.tokens[: len(stopped.tokens)]
    assert stop in decode(stopped.tokens)
    assert stop not in decode(stopped.tokens[:-1])


def test_what_may_become_a_stop_string_is_held_back() -> None:
    """Pieces of a stop string are shown only once it is clear that it does not come; unarmed pieces always are."""
    text = Text(("abc",))
    assert (text.push("xa", armed=True), text.release(ended=False)) == (None, "")
    assert (text.push("bd", armed=True), text.release(ended=False)) == (None, "xa")
    assert (text.push("abcde", armed=True), text.release(ended=True)) == ("abc", "bd")
    early = Text(("abc",))
    assert (early.push("abc", armed=False), early.push("ab", armed=True)) == (None, None)
    assert (early.push("c.", armed=True), early.release(ended=True)) == ("abc", "abc")


def test_a_request_without_tokens_computes_its_prompt() -> None:
    """max_tokens 0 costs the prompt, emits nothing, and ends."""
    sim = engine()
    sequence = sim.submit(job(prompt=100, max_tokens=0), 0)
    drain(sim)
    assert spans(sim) == [(0, 12.1)]
    assert (sequence.tokens, sequence.finish_reason, sim.counters.prompt_tokens) == ([], "length", 100)


@pytest.mark.parametrize(
    ("late_ms", "cost_ms", "late"),
    [(2.0, 10, False), (2.01, 10, True), (2.9, 30, False), (3.1, 30, True)],
)
def test_a_step_is_late_beyond_two_milliseconds_and_a_tenth(late_ms: float, cost_ms: float, late: bool) -> None:
    """Both bounds must be passed: a long step may be two milliseconds late."""
    log = StepLog(0, round(cost_ms * MS), 1, 1, 0, 0, 0, 0, late_ns=round(late_ms * MS))
    assert log.late == late


def test_what_could_never_run_is_refused() -> None:
    """A sequence longer than the model, an empty prompt, and a model longer than its memory."""
    sim = engine(max_model_len=64)
    with pytest.raises(ValueError, match="fit"):
        sim.submit(job(prompt=60, max_tokens=5), 0)
    with pytest.raises(ValueError, match="fit"):
        sim.submit(job(prompt=0), 0)
    with pytest.raises(ValidationError, match="could never run"):
        Settings(max_model_len=2050, kv_cache_tokens=2050)


def test_speculation_is_faster_by_what_the_cost_model_gives() -> None:
    """Alone: 10.15 ms a token against 13.55 ms for the tokens of a step."""
    plain, fast = engine(seed=1), engine(speculative=4, seed=1)
    for sim in (plain, fast):
        sim.submit(job(max_tokens=1500, sampling=Sampling()), 0)
        drain(sim)
    per_step = 1 + fast.counters.accepted_tokens / fast.counters.drafts
    ratio = plain.counters.modelled_ns / fast.counters.modelled_ns
    assert ratio == pytest.approx(10.15 / 13.55 * per_step, rel=0.01)
    assert 2 < per_step < 4
