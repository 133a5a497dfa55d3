import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.sim.model import TOP, Model
from servers.sim.tokenizer import EOS, PIECES, SAMPLED, VOCABULARY, as_text, decode, encode


def made(seed: int = 0, rows: int = 4096, mean_reply_tokens: float = 40, draft_noise: float = 2.6) -> Model:
    return Model(seed=seed, rows=rows, mean_reply_tokens=mean_reply_tokens, draft_noise=draft_noise)


@pytest.fixture(scope="module")
def model() -> Model:
    return made()


def test_entropies_are_those_of_the_reference_population(model: Model) -> None:
    """Mean entropy .66, varentropy 1.06, top probability .85; nearly half under .01 nat, over a fifth above .67."""
    p, log_p = model.target, model.logprobs
    entropy = -(p * log_p).sum(1)
    varentropy = (p * log_p**2).sum(1) - entropy**2
    assert entropy.mean() == pytest.approx(0.66, abs=0.05)
    assert varentropy.mean() == pytest.approx(1.06, abs=0.08)
    assert p.max(1).mean() == pytest.approx(0.85, abs=0.02)
    assert (entropy < 0.01).mean() > 0.43
    assert 0.2 < (entropy > 0.67).mean() < 0.28


def test_rows_are_distributions_that_exclude_nothing(model: Model) -> None:
    """Every row sums to one and gives every sampleable token some probability, in the target and in the draft."""
    for table in (model.target, model.draft):
        assert table.shape == (4096, SAMPLED)
        assert table.min() > 0
        assert np.abs(table.sum(1) - 1).max() < 1e-12


@pytest.mark.parametrize(("rows", "mean"), [(64, 10_000), (64, 40), (4096, 40), (1000, 4), (65_536, 300)])
def test_the_mean_hazard_of_the_end_is_one_over_the_mean_reply(rows: int, mean: float) -> None:
    """Contexts are hashed evenly over the rows, so that the mean hazard is the reciprocal of the mean reply."""
    hazards = made(rows=rows, mean_reply_tokens=mean).target[:, EOS]
    assert hazards.mean() == pytest.approx(1 / mean, rel=1e-9)
    assert hazards.max() < 1
    assert np.median(hazards) < 1e-4 or mean == 4


def test_a_speculating_engine_gets_three_tokens_of_four_drafted(model: Model) -> None:
    """Acceptance at one position is the overlap of the two laws; with four drafted it makes 1 + a + … + a⁴ tokens."""
    overlap = np.minimum(model.target, model.draft).sum(1).mean()
    assert sum(overlap**k for k in range(5)) == pytest.approx(3, abs=0.1)


def test_the_seed_makes_the_model() -> None:
    """The same seed gives the same tables and hashes, another seed others: engines share a model by its seed alone."""
    one, same, other = made(7, 64), made(7, 64), made(8, 64)
    assert np.array_equal(one.target, same.target)
    assert np.array_equal(one.draft, same.draft)
    assert one.rows([5, 6, 7]) == same.rows([5, 6, 7])
    assert not np.array_equal(one.target, other.target)


def test_contexts_hash_evenly_and_by_every_token(model: Model) -> None:
    """Rows of random contexts pass a chi-square test; changing the first of 2,000 tokens changes the last state."""
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, 100_000).tolist()
    counts = np.bincount(model.rows(tokens), minlength=4096)
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert abs(chi_square - 4095) < 5 * np.sqrt(2 * 4095)
    assert model.read([1, *tokens[:2000]]) != model.read([2, *tokens[:2000]])


def test_rows_and_read_agree() -> None:
    """rows() gives at each position the row of the context before it, as advancing token by token does."""
    model = made(rows=64)
    tokens = [3, 1, 4, 1, 5]
    assert model.rows(tokens) == [model.row(model.read(tokens[:position])) for position in range(5)]


def test_order_falls_by_probability(model: Model) -> None:
    """The alternatives kept of each row are its likeliest tokens in falling order."""
    kept = np.take_along_axis(model.target, model.order, axis=1)
    assert kept.shape == (4096, TOP)
    assert (np.diff(kept, axis=1) <= 0).all()
    assert np.array_equal(kept, -np.sort(-model.target, axis=1)[:, :TOP])


@given(st.text())
def test_every_text_round_trips(text: str) -> None:
    """decode(encode(text)) == text, bytes standing in for what the vocabulary lacks."""
    assert decode(encode(text)) == text


def test_common_words_are_one_token() -> None:
    """The vocabulary holds four hundred sampleable pieces, words with their space; the longest that fits is taken."""
    assert len(set(PIECES)) == SAMPLED == 400
    assert [as_text(token) for token in encode("a the there")] == ["a", " the", " there"]
    assert max(encode("é")) < VOCABULARY
    assert as_text(encode("é")[0]) == "�"


def test_the_draft_may_be_served_alone(model: Model) -> None:
    """Its rows are those that the speculating engine drafts from, and it reads contexts alike."""
    alone = Model(seed=0, rows=4096, mean_reply_tokens=40, draft_noise=2.6, of_draft=True)
    assert np.array_equal(alone.target, model.draft)
    assert alone.rows([3, 1, 4, 1, 5]) == model.rows([3, 1, 4, 1, 5])
    assert np.array_equal(np.exp(alone.logprobs), np.exp(np.log(model.draft)))
