"""Planted faults of the embedded engine: each changes what is sampled or answered, and nothing else."""

import numpy as np
import pytest
from scipy.stats import chisquare

from servers.sim import faults
from servers.sim.core import Engine
from servers.sim.faults import CHANGES, NAMES, VERIFIERS
from servers.sim.sampling import Law, Sampling, law_of, shaped, verified
from servers.sim.sequence import Job
from servers.sim.settings import Settings
from servers.sim.tokenizer import EOS

LAW = np.array([0.02, 0.5, 0.28, 0.2])
DRAFT = np.array([0.05, 0.25, 0.3, 0.4])


def replies(fault: str | None, count: int = 30, speculative: int = 0, prompts: int = 1000) -> list[list[int]]:
    """Replies of one engine, one after the other; prompt i is i mod prompts."""
    engine = Engine(
        Settings(seed=3, rows=256, speculative=speculative, fault=fault),  # type: ignore[arg-type]
        np.random.default_rng(3),
    )
    found = []
    for index in range(count):
        sequence = engine.submit(Job(prompt=[40 + index % prompts % 50, 41, 42], max_tokens=60), 0)
        while sequence.finish_reason is None:
            start = engine.next_start()
            assert start is not None
            engine.finish(engine.begin(start), 0)
        found.append(list(sequence.tokens))
    return found


def test_every_name_does_something() -> None:
    """Of the names that can be asked for each is a law, a verification, a generator, a condition or an answer."""
    elsewhere = {"same-seed", "replay", "dropped", "usage", "bundled"}
    assert set(NAMES) == {*CHANGES, *VERIFIERS, *elsewhere}


@pytest.mark.parametrize("fault", ["typical", "late", "usage", "bundled", "dropped"])
def test_what_a_fault_does_not_touch_stays_bit_for_bit(fault: str) -> None:
    """Without speculation a verification changes nothing; before it begins `late` does not; answers are no tokens."""
    count = 1 if fault == "late" else 30  # replies share a generator, and later ones would differ with the first
    plain = [reply[: faults.LATE] for reply in replies(None, count)]
    assert [reply[: faults.LATE] for reply in replies(fault, count)] == plain


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("temperature-0.95", shaped(LAW, Sampling(temperature=0.95))),
        ("top-p-0.95", np.array([0, 0.5, 0.28, 0.2]) / 0.98),
        ("min-p-0.05", np.array([0, 0.5, 0.28, 0.2]) / 0.98),
        ("greedy-0.20", 0.8 * LAW + np.array([0, 0.2, 0, 0])),
        ("junk-0.001", 0.999 * LAW + 0.00025),
        ("short", np.array([0.026, *(LAW[1:] * (1 - 0.026) / 0.98)])),
    ],
)
def test_a_changed_law_is_the_one_it_is_named_after(fault: str, law: np.ndarray) -> None:
    """Against the law written out."""
    assert EOS == 0
    assert CHANGES[fault](LAW, 5) == pytest.approx(law)
    assert CHANGES[fault](LAW, 5).sum() == pytest.approx(1)


@pytest.mark.parametrize(("fault", "kl"), [("noise-0.005", 0.005), ("noise-0.01", 0.01), ("noise-0.03", 0.03)])
def test_noise_has_the_divergence_in_its_name(fault: str, kl: float) -> None:
    """Mean KL(model‖noisy) over the rows of the engine's own tables, within 40 %; frozen: the same at every visit."""
    from servers.sim.decode import sampler_of

    table = sampler_of(Settings(rows=2048)).model.target
    noisy = np.array([CHANGES[fault](row, index) for index, row in enumerate(table)])
    found = float((table * np.log(table / noisy)).sum(axis=1).mean())
    assert found == pytest.approx(kl, rel=0.4)
    assert (CHANGES[fault](table[3], 3) == noisy[3]).all()


def first_tokens(verify: faults.Verify, n: int = 20_000) -> np.ndarray:
    """Counts of the first token of a chunk of one draft."""
    rng = np.random.default_rng(5)
    target, draft = law_of(LAW), law_of(DRAFT)
    counts = np.zeros(4)
    for _ in range(n):
        drafted = [int(np.searchsorted(draft.cumulative, rng.random(), side="right"))]
        counts[verify(drafted, [target, target], [draft], rng)[0]] += 1
    return counts


def passed(kept: np.ndarray, instead: Law) -> np.ndarray:
    return np.asarray(kept + (1 - kept.sum()) * instead.p)


RESIDUAL = law_of(np.maximum(LAW - DRAFT, 0) / np.maximum(LAW - DRAFT, 0).sum())
EXACT = np.minimum(LAW, DRAFT)
ENTROPY = -(LAW * np.log(LAW)).sum()


@pytest.mark.parametrize(
    ("verify", "law"),
    [
        (verified, LAW),
        (faults.threshold(0.5), passed(np.where(LAW >= 0.5, DRAFT, EXACT), RESIDUAL)),
        (faults.unverified, passed(0.1 * DRAFT + 0.9 * EXACT, RESIDUAL)),
        (
            faults.typical,
            passed(np.where(min(0.09, 0.3 * np.exp(-ENTROPY)) <= LAW, DRAFT, 0), law_of(LAW)),
        ),
    ],
    ids=["exact", "threshold", "unverified", "typical"],
)
def test_verification_draws_from_the_law_that_follows(verify: faults.Verify, law: np.ndarray) -> None:
    """χ² over 20,000 chunks against the closed form."""
    counts = first_tokens(verify)
    assert chisquare(counts, counts.sum() * law / law.sum()).pvalue > 1e-3


def test_thresholds_draft_what_is_likeliest() -> None:
    """As SGLang does: where the draft's first choice has the chance asked for, nothing else is ever sampled."""
    draft = law_of(np.array([0.7, 0.1, 0.1, 0.1]))
    assert faults.drafting("threshold-0.5", draft).p.tolist() == [1, 0, 0, 0]
    assert faults.drafting(None, draft) is draft


def test_one_seed_for_all_and_replay_repeat_themselves() -> None:
    """Same seed: one prompt, one reply. Replay: a prompt that came before gets its reply again, others do not."""
    assert len({tuple(reply) for reply in replies("same-seed", 10, prompts=1)}) == 1
    again = replies("replay", 20, speculative=4, prompts=10)
    assert again[:10] == again[10:]
    assert len({tuple(reply) for reply in again[:10]}) > 5
    assert len({tuple(reply) for reply in replies(None, 10, prompts=1)}) > 1


def test_cheap_under_load_only_from_so_many_on() -> None:
    """By how many run; `late` by the place in the reply."""
    engine = Engine(Settings(seed=1, rows=64), np.random.default_rng(1))
    sequence = engine.submit(Job(prompt=[40], max_tokens=5), 0)
    assert not faults.applies("under-load", sequence, 0, faults.BUSY - 1)
    assert faults.applies("under-load", sequence, 0, faults.BUSY)
    assert not faults.applies("late", sequence, faults.LATE - 1, 1)
    assert faults.applies("late", sequence, faults.LATE, 1)


def test_an_unknown_fault_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"temperature-0\.95"):
        Settings(fault="temperature")  # type: ignore[arg-type]
