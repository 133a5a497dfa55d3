import numpy as np
import pytest
from scipy import stats

from servers.sim.core import Engine
from servers.sim.decode import sampler_of
from servers.sim.sampling import Law, Sampling, draw, law_of, residual, shaped, verified
from servers.sim.sequence import Job
from servers.sim.settings import Settings
from servers.sim.tokenizer import EOS, SAMPLED

P = np.array([0.05, 0.4, 0.25, 0.2, 0.1])

SHAPES = [
    (Sampling(), [0.05, 0.4, 0.25, 0.2, 0.1], "temperature 1 and nothing else leaves the row alone"),
    (Sampling(temperature=0), [0, 1, 0, 0, 0], "greedy is the likeliest token"),
    (Sampling(temperature=0.5), P**2 / (P**2).sum(), "temperature t raises to the power 1/t"),
    (Sampling(top_k=2), [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0], "top_k keeps k"),
    (Sampling(top_p=0.5), [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0], "top_p keeps the token that crosses the mass"),
    (Sampling(top_p=1e-9), [0, 1, 0, 0, 0], "top_p keeps at least one"),
    (Sampling(min_p=0.5), [0, 0.4 / 0.85, 0.25 / 0.85, 0.2 / 0.85, 0], "min_p is a share of the likeliest"),
    (Sampling(top_k=3, top_p=0.5), [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0], "top_p counts the mass that top_k left"),
    (Sampling(top_k=9), P, "a top_k beyond the row is off"),
    (Sampling(eos_masked=True), [0, *(P[1:] / 0.95)], "a masked end is never drawn"),
    (Sampling(temperature=0.5, eos_masked=True), [0, *(P[1:] ** 2 / (P[1:] ** 2).sum())], "nor at a temperature"),
]


@pytest.mark.parametrize(("sampling", "expected", "reason"), SHAPES, ids=[reason for *_, reason in SHAPES])
def test_sampling_settings_shape_a_row(sampling: Sampling, expected: list[float], reason: str) -> None:
    """Each setting gives the law that its definition gives by hand."""
    assert shaped(P, sampling) == pytest.approx(np.asarray(expected, float)), reason


def test_equal_tokens_go_to_the_lowest_id() -> None:
    """Ties of the likeliest are decided by id, in greedy and in top_k."""
    tied = np.array([0.2, 0.4, 0.4])
    assert shaped(tied, Sampling(temperature=0)).tolist() == [0, 1, 0]
    assert shaped(tied, Sampling(top_k=1)).tolist() == [0, 1, 0]


def chi_square_p(counts: np.ndarray, p: np.ndarray) -> float:
    """p value of counts against a law; tokens too rare for the test are pooled."""
    expected = p * counts.sum()
    rare = expected < 5
    assert counts[p == 0].sum() == 0
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0
    return float(stats.chisquare(observed[kept], expected[kept]).pvalue)


def open_rows(sampling: Sampling) -> tuple[list[Law], list[Law]]:
    """Three rows of high entropy, as target and as draft."""
    sampler = sampler_of(Settings())
    entropy = -(sampler.model.target * sampler.model.logprobs).sum(1)
    rows = np.argsort(-entropy)[[0, 200, 400]].tolist()
    return [sampler.law(False, sampling, row) for row in rows], [sampler.law(True, sampling, row) for row in rows]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_p=0.9)])
def test_draws_follow_the_law(sampling: Sampling) -> None:
    """60,000 draws of one row pass a chi-square test against it, and none lies where it has no mass."""
    law = open_rows(sampling)[0][0]
    rng = np.random.default_rng(1)
    counts = np.bincount([draw(law, rng) for _ in range(60_000)], minlength=SAMPLED)
    assert chi_square_p(counts, law.p) > 1e-4


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.8), Sampling(top_k=50, temperature=1.3)]
)
def test_verified_tokens_follow_the_target(sampling: Sampling) -> None:
    """Every position of what drafting and verifying gives is distributed as the target's law there, not the draft's."""
    target, draft = open_rows(sampling)
    rng = np.random.default_rng(2)
    counts = np.zeros((3, SAMPLED))
    for _ in range(40_000):
        drafted = [draw(law, rng) for law in draft[:2]]
        for position, token in enumerate(verified(drafted, target, draft[:2], rng)):
            counts[position, token] += 1
    assert [chi_square_p(counts[i], target[i].p) > 1e-4 for i in range(3)] == [True] * 3
    assert counts.sum(1)[0] == 40_000
    assert counts.sum(1)[1] == pytest.approx(40_000 * np.minimum(target[0].p, draft[0].p).sum(), rel=0.03)


def test_the_test_would_see_a_draft_that_is_not_verified() -> None:
    """Tokens of the draft itself fail the same chi-square test."""
    target, draft = open_rows(Sampling())
    rng = np.random.default_rng(3)
    counts = np.bincount([draw(draft[0], rng) for _ in range(5_000)], minlength=SAMPLED)
    assert chi_square_p(counts, target[0].p) < 1e-9


def test_the_residual_is_what_the_draft_has_too_little_of() -> None:
    """(p − q)+ normalized; where draft and target agree, the target itself."""
    p, q = law_of(np.array([0.5, 0.3, 0.2])), law_of(np.array([0.2, 0.6, 0.2]))
    assert residual(p, q).p == pytest.approx([1, 0, 0])
    assert residual(p, p) is p


def replies(settings: Settings, sampling: Sampling, count: int) -> list[tuple[list[int], list[int]]]:
    """(tokens, rows) of `count` replies, eight running at a time."""
    engine = Engine(settings, np.random.default_rng(settings.seed))
    got: dict[int, tuple[list[int], list[int]]] = {}
    prompts = np.random.default_rng(9).integers(1, SAMPLED, (count, 12)).tolist()
    for prompt in prompts:
        engine.submit(Job(prompt=prompt, max_tokens=200, sampling=sampling), 0)
    while (start := engine.next_start()) is not None:
        for emission in engine.finish(engine.begin(start), 0):
            tokens, rows = got.setdefault(id(emission.sequence), ([], []))
            tokens += emission.tokens
            rows += emission.rows
    return list(got.values())


@pytest.mark.parametrize("speculative", [0, 4])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, top_p=0.9), Sampling(min_p=0.02, top_k=30)], ids=str
)
def test_replies_follow_the_law_of_every_context(speculative: int, sampling: Sampling) -> None:
    """Randomized probability transforms of some 15,000 emitted tokens under the law of their own row are uniform."""
    settings = Settings(speculative=speculative, seed=4, max_num_seqs=8)
    sampler, rng = sampler_of(settings), np.random.default_rng(5)
    transforms = []
    for tokens, rows in replies(settings, sampling, 400):
        for token, row in zip(tokens, rows, strict=True):
            law = sampler.law(False, sampling, row)
            assert law.p[token] > 0
            transforms.append(law.cumulative[token] - rng.random() * law.p[token])
    counts = np.histogram(transforms, bins=40, range=(0, 1))[0]
    assert len(transforms) > 8_000
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("speculative", [0, 4])
def test_a_reply_means_about_forty_tokens(speculative: int) -> None:
    """The end included; the standard error of 1,000 replies is 1.3 tokens. Speculation changes nothing."""
    lengths = [len(tokens) for tokens, _ in replies(Settings(speculative=speculative, seed=6), Sampling(), 1000)]
    assert np.mean(lengths) == pytest.approx(40, abs=5)


def test_rows_are_those_of_the_contexts() -> None:
    """The row that a token is said to be drawn from is the row of prompt and reply before it, also when speculating."""
    engine = Engine(Settings(speculative=3, seed=1), np.random.default_rng(1))
    sequence = engine.submit(Job(prompt=[5, 6, 7], max_tokens=30, ignore_eos=True), 0)
    rows = []
    while (start := engine.next_start()) is not None:
        rows += [row for emission in engine.finish(engine.begin(start), 0) for row in emission.rows]
    assert rows == engine.model.rows([5, 6, 7, *sequence.tokens])[3:]


@pytest.mark.parametrize("speculative", [0, 4])
def test_greedy_replies_are_the_likeliest_tokens(speculative: int) -> None:
    """At temperature 0 a speculating engine gives the very tokens of a plain one."""
    settings = Settings(speculative=speculative)
    model = sampler_of(settings).model
    for tokens, rows in replies(settings, Sampling(temperature=0), 10):
        assert tokens == model.order[rows, 0].tolist()


def test_a_seed_makes_a_reply_repeatable() -> None:
    """Equal seeds give equal replies in engines of unequal randomness; without one, replies differ."""

    def reply(engine_seed: int, seed: int | None) -> list[int]:
        engine = Engine(Settings(), np.random.default_rng(engine_seed))
        sequence = engine.submit(Job(prompt=[5, 6, 7], max_tokens=60, ignore_eos=True, seed=seed), 0)
        while (start := engine.next_start()) is not None:
            engine.finish(engine.begin(start), 0)
        return sequence.tokens

    assert reply(1, seed=11) == reply(2, seed=11)
    assert reply(1, seed=None) != reply(2, seed=None)
    assert reply(1, seed=11) != reply(1, seed=12)


def test_min_tokens_puts_the_end_off() -> None:
    """No reply ends before its min_tokens, and those that follow still end by themselves."""
    engine = Engine(Settings(speculative=4, seed=2), np.random.default_rng(2))
    jobs = [Job(prompt=[i, 9], max_tokens=400, min_tokens=25) for i in range(1, 60)]
    sequences = [engine.submit(job, 0) for job in jobs]
    while (start := engine.next_start()) is not None:
        engine.finish(engine.begin(start), 0)
    assert all(EOS not in sequence.tokens[:25] for sequence in sequences)
    assert {sequence.finish_reason for sequence in sequences} == {"stop"}
