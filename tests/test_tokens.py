"""Statistics of scored tokens, the e-process and its strata, each against a value found another way."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, chi2, poisson

from factories import FAST, SLOW, WARM, Server, Shape, comparison, heated
from gates import alternatives, eprocess, pit, plan, reading, rejection, residuals, strata, tokens
from gates.alternatives import ALTERNATIVES
from gates.checks import tail
from gates.eprocess import EProcess
from gates.evidence import Pass, Reply
from gates.residuals import Cells
from gates.scored import Scored
from loadgen.record import SCORE_DTYPE, Run

LAW = np.array([0.55, 0.25, 0.13, 0.07])  # of four tokens; the first three are listed
EOS = 2


def block(p: np.ndarray, cell: list[int] | np.ndarray, k: int = 3) -> Cells:
    """The same law at every position, its first k tokens listed."""
    n = len(cell)
    listed = np.tile(p[:k], (n, 1))
    ids = np.tile(np.arange(k, dtype=np.int32), (n, 1))
    return Cells(np.log(listed), listed, 1 - listed.sum(axis=1), np.asarray(cell), ids)


EVERY_CELL = block(LAW, [0, 1, 2, 3])


@pytest.mark.parametrize(
    "statistic",
    [
        residuals.likelihood,
        residuals.first_choice,
        residuals.first_choice_weighted,
        residuals.tail,
        residuals.junk,
        residuals.eos(frozenset({EOS})),
    ],
)
def test_every_statistic_has_mean_zero_and_the_variance_it_says(statistic: residuals.Statistic) -> None:
    """By enumeration of all cells: Σ p d = 0 and Σ p d² = v, or no more than v."""
    d, v = statistic(EVERY_CELL)
    assert float(LAW @ d) == pytest.approx(0, abs=1e-12)
    assert float(LAW @ d**2) <= v[0] + 1e-12
    if statistic is not residuals.likelihood and statistic(EVERY_CELL)[0].any():
        assert float(LAW @ d**2) >= 0.4 * v[0]


def test_tail_is_what_lies_beyond_the_nucleus() -> None:
    """.9 + .08 + .01 hold .985: the fourth token is the tail, and where too little is listed nothing is said."""
    law = np.array([0.9, 0.08, 0.01, 0.006, 0.004])
    d, v = residuals.tail(block(law, [2, 3, 4], k=4))
    assert d == pytest.approx([-0.01, 0.99, 0.99])
    assert v == pytest.approx([0.01 * 0.99] * 3)
    assert residuals.tail(block(LAW, [3]))[0].tolist() == [0.0]  # only .93 is listed


def test_eos_counts_the_chance_of_an_end() -> None:
    """1 − p at an end, −p elsewhere; nothing where no such id is listed."""
    d, v = residuals.eos(frozenset({EOS}))(EVERY_CELL)
    assert d == pytest.approx([-0.13, -0.13, 0.87, -0.13])
    assert v == pytest.approx([0.13] * 4)
    assert not residuals.eos(frozenset({9}))(EVERY_CELL)[1].any()


# Alternatives and the e-process.


def test_every_alternative_is_a_law() -> None:
    """Σ_c p_c · r_c/p_c = 1: under the reference each ratio has mean one, for certain and for open positions."""
    for law in (LAW, np.array([0.999, 0.0006, 0.0003, 0.0001]), np.array([0.3, 0.28, 0.22, 0.2])):
        ratios = np.exp(alternatives.log_ratios(block(law, [0, 1, 2, 3])))
        assert (law @ ratios) == pytest.approx(np.ones(len(ALTERNATIVES)), abs=1e-6)


def test_ratios_are_those_of_the_named_laws() -> None:
    """Against the laws written out, each with its share of the reference's own."""
    named = {(one.family, one.setting, one.kept): index for index, one in enumerate(ALTERNATIVES)}
    ratios = np.exp(alternatives.log_ratios(EVERY_CELL))
    nucleus = np.where([1, 1, 1, 0], LAW, 0) / 0.93
    greedy = 0.8 * LAW + 0.2 * np.array([1, 0, 0, 0])
    head = 0.1 * LAW + 0.9 * np.array([1, 0, 0, 0])
    junk = 0.99 * LAW + 0.01 * np.array([0, 0, 0, 1])
    expected = {
        ("top_p", 0.9, 0.01): 0.99 * nucleus / LAW + 0.01,
        ("greedy", 0.2, 0.01): 0.99 * greedy / LAW + 0.01,
        ("threshold", 0.5, 0.1): head / LAW,
        ("threshold", 0.5, 0.5): (0.5 * LAW + 0.5 * np.array([1, 0, 0, 0])) / LAW,
        ("junk", 1e-2, 0.01): 0.99 * junk / LAW + 0.01,
    }
    for key, ratio in expected.items():
        assert ratios[:, named[key]] == pytest.approx(ratio), key


def test_temperature_is_exact_where_everything_is_listed() -> None:
    """p^(1/T) renormalized, from the listed cells alone."""
    law = LAW[:3] / LAW[:3].sum()
    index = next(i for i, one in enumerate(ALTERNATIVES) if (one.family, one.setting) == ("temperature", 0.9))
    hot = heated(law[None, :], 0.9)[0]
    found = np.exp(alternatives.log_ratios(block(law, [0, 1, 2]))[:, index])
    assert found == pytest.approx(0.99 * hot / law + 0.01, rel=1e-4)


def test_e_is_the_mean_of_the_products() -> None:
    """By hand over three tokens; the largest value on the way is kept."""
    process = EProcess.empty()
    ratios = np.random.default_rng(1).normal(0, 1, (3, len(ALTERNATIVES)))
    process.feed(ratios[:1])
    process.feed(ratios[1:])
    products = np.exp(np.cumsum(ratios, axis=0)).mean(axis=1)
    assert math.exp(process.log_e) == pytest.approx(products[-1])
    assert math.exp(process.log_sup) == pytest.approx(max(1, *products))
    assert eprocess.log_mean_exp(np.array([[-1000.0, -1000.0]])) == pytest.approx([-1000.0])


def test_ville_by_enumeration() -> None:
    """Over every sequence of four tokens E has mean one, so that it passes 1/α with a chance of α at most."""
    ratios = alternatives.log_ratios(EVERY_CELL)
    mean = 0.0
    for cells in itertools.product(range(4), repeat=4):
        e = float(np.exp(eprocess.log_mean_exp(ratios[list(cells)].sum(axis=0)[None, :]))[0])
        mean += float(np.prod(LAW[list(cells)])) * e
    assert mean == pytest.approx(1, abs=1e-5)


# PIT.


def test_pit_is_uniform_and_its_polynomials_are_orthonormal() -> None:
    """Of a lossless stream the statistic is χ² with four degrees; ∫φ_i φ_j = 1[i = j]."""
    u = (np.arange(100_000) + 0.5) / 100_000
    gram = pit.legendre(u).T @ pit.legendre(u) / len(u)
    assert gram == pytest.approx(np.eye(pit.TERMS), abs=1e-3)
    rng = np.random.default_rng(4)
    p_values = []
    for _ in range(400):
        found = pit.Uniformity.empty()
        found.feed(block(LAW, rng.choice(4, 500, p=LAW)), rng)
        p_values.append(found.p_value)
    assert binom.ppf(0.001, 400, 0.05) <= sum(p <= 0.05 for p in p_values) <= binom.ppf(0.999, 400, 0.05)


def test_pit_rejects_another_law_and_counts_only_open_positions() -> None:
    """Of 3,000 tokens at temperature .8; a sure position adds nothing."""
    rng = np.random.default_rng(4)
    found, lossless = pit.Uniformity.empty(), pit.Uniformity.empty()
    found.feed(block(LAW, rng.choice(4, 3000, p=heated(LAW[None, :], 0.8)[0])), rng)
    lossless.feed(block(LAW, rng.choice(4, 3000, p=LAW)), rng)
    assert found.p_value < 1e-6
    assert found.p_against(lossless) < 1e-4 and found.p_against(found) == 1
    sure = pit.Uniformity.empty()
    sure.feed(block(np.array([0.999, 0.0005, 0.0003, 0.0002]), [0] * 10), rng)
    assert (sure.n, sure.p_value) == (0, 1.0)
    statistic = float((found.sums**2).sum()) / found.n
    assert found.p_value == pytest.approx(chi2.sf(statistic, 4))


# The exact test of the tail.


def test_too_few_is_exact() -> None:
    """e^−λ where none came; against stock a binomial; 1 where nothing was expected."""
    assert tail.too_few(0, 7.5) == pytest.approx(math.exp(-7.5))
    assert tail.too_few(3, 7.5) == pytest.approx(poisson.cdf(3, 7.5))
    assert tail.too_few(0, 0.0) == 1.0
    assert tail.too_few_against((2, 8.0), (9, 8.0)) == pytest.approx(binom.cdf(2, 11, 0.5))
    assert tail.too_few_against((0, 0.0), (0, 8.0)) == 1.0


# Strata.


def reply(request: int, sent: int, chunks: list[int], stamps: list[int]) -> Reply:
    return Reply(
        request=request,
        prompt_id=str(request),
        prompt=None,
        lane=0,
        sent_ns=sent,
        end_ns=stamps[-1],
        chunk_ns=np.array(stamps),
        chunk_tokens=np.array(chunks),
        tokens=sum(chunks),
        failure=None,
    )


def test_strata_are_what_was_known_before_the_token() -> None:
    """Two replies, three and two chunks; the second begins while the first runs. In flight: at the previous chunk."""
    replies = [reply(1, 0, [1, 2, 1], [10, 20, 30]), reply(2, 15, [2, 1], [40, 50])]
    rows = np.zeros(7, SCORE_DTYPE)
    rows["position"] = [0, 1, 2, 3, 0, 1, 2]
    owner = np.array([0, 0, 0, 0, 1, 1, 1])
    one = Pass("solo", 0, replies, Scored(rows, owner, {}), {}, {})
    levels = strata.levels(one)
    assert levels["position"].tolist() == [0, 1, 1, 1, 0, 1, 1]
    assert levels["chunk_index"].tolist() == [0, 0, 1, 0, 0, 1, 0]
    assert levels["previous_chunk"].tolist() == [0, 1, 1, 2, 0, 0, 2]
    # 1 at 0, 1 at 10, 2 at 20 (the second was sent at 15), 2 at 15; at 40 the first has ended.
    assert levels["in_flight"].tolist() == [0, 0, 0, 1, 1, 1, 0]


def test_an_end_that_the_server_left_out_has_no_chunk() -> None:
    """One scored token more than the chunks hold: which step drew it is unknown, and so are all chunks of the pass; put
    with the last chunk, ends would be all that is second in a chunk of a server that sends token by token."""
    replies = [reply(1, 0, [1, 1], [10, 20]), reply(2, 15, [1, 1], [40, 50])]
    rows = np.zeros(5, SCORE_DTYPE)
    rows["position"] = [0, 1, 2, 0, 1]
    one = Pass("solo", 0, replies, Scored(rows, np.array([0, 0, 0, 1, 1]), {}), {}, {})
    levels = strata.levels(one)
    assert levels["position"].tolist() == [0, 1, 1, 0, 1]
    for name in ("chunk_index", "previous_chunk", "in_flight"):
        assert levels[name].tolist() == [strata.UNKNOWN] * 5


def test_strata_are_unknown_where_the_wire_does_not_tell() -> None:
    """Chunks without counts: no chunk index, no moment; the position is known all the same."""
    bare = reply(1, 0, [1], [10])
    object.__setattr__(bare, "chunk_tokens", None)
    rows = np.zeros(1, SCORE_DTYPE)
    one = Pass("solo", 0, [bare], Scored(rows, np.array([0]), {}), {}, {})
    names = ("position", "chunk_index", "previous_chunk", "in_flight")
    assert [strata.levels(one)[name].tolist() for name in names] == [[0], [-1], [-1], [-1]]


# All of an arm.


def test_tokens_of_an_arm_add_up(tmp_path: Path) -> None:
    """Residuals as each statistic gives them; the e-process is the sum over profiles, and over levels of a stratum."""
    found = reading.load(comparison(tmp_path / "run", np.random.default_rng(7), SLOW, FAST, Shape(requests=20)))
    made = tokens.of(found.candidate)
    rows = np.concatenate([one.scored.rows for one in found.candidate.passes if one.profile == "team"])
    assert made.residuals["junk"]["team"].d == pytest.approx(residuals.junk(residuals.cells(rows))[0])
    assert sum(made.of_profiles.values()) == pytest.approx(made.evidence.totals)
    for name in strata.LEVELS:
        assert made.of_strata[name].log_ratios.sum(axis=0) == pytest.approx(made.evidence.totals)
    assert tokens.of(found.candidate) is made


def test_a_fault_is_suspected_and_named(tmp_path: Path) -> None:
    """Temperature .9 in every stratum; a lossless candidate in none."""
    strict = plan.load("strict")
    for candidate, says in ((WARM, "looks like temperature ≈ 0.9"), (FAST, None)):
        run = comparison(tmp_path / str(says), np.random.default_rng(7), SLOW, candidate)
        found = rejection.suspected(reading.load(run), 2.5e-4, 1.25e-4, strict)
        assert (found.says, None in found.profiles, found.excusable) == (says, says is not None, True)


def test_a_truncated_candidate_is_different_by_its_tail(tmp_path: Path) -> None:
    """top_p .95 at 19,000 tokens: the tail check says so, and the diagnosis is truncation, which no margin excuses."""
    from gates import verdict

    def nucleus(p: np.ndarray) -> np.ndarray:
        q = np.where(np.cumsum(p, axis=1) - p < 0.95, p, 0)
        return np.asarray(q / q.sum(axis=1, keepdims=True))

    run = comparison(tmp_path / "run", np.random.default_rng(7), SLOW, Server(sampling=nucleus))
    found = verdict.judge(reading.load(run), plan.load("strict"), ("eos",))
    assert found.outcome == "different"
    assert found.diagnosis is not None and "top_p" in found.diagnosis
    assert next(one for one in found.findings if one.check == "tail" and one.profile is None).outcome == "different"


def lowered(rows: np.ndarray, pick: np.ndarray) -> None:
    rows["logprobs"][pick, 1:] = -np.inf


def sure(rows: np.ndarray, pick: np.ndarray) -> None:
    rows["logprobs"][pick, 0], rows["logprobs"][pick, 1:] = 0.0, -np.inf


def no_numbers(rows: np.ndarray, pick: np.ndarray) -> None:
    rows["logprobs"][pick, 0] = np.nan


def more_than_one(rows: np.ndarray, pick: np.ndarray) -> None:
    rows["logprobs"][pick] = 0.4


def next_to_nothing(rows: np.ndarray, pick: np.ndarray) -> None:
    rows["logprobs"][pick] = -1e30


def one_id(rows: np.ndarray, pick: np.ndarray) -> None:
    rows["ids"][pick] = 7


def far_off(rows: np.ndarray, pick: np.ndarray) -> None:
    rows["position"][pick] = 10**6


@pytest.mark.parametrize("change", [lowered, sure, no_numbers, more_than_one, next_to_nothing, one_id, far_off])
def test_scores_of_any_values_are_judged(tmp_path: Path, change: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """A reference that answers nonsense at a third of the positions: a verdict all the same, without a warning."""
    from gates import verdict

    run = comparison(tmp_path / "run", np.random.default_rng(7), SLOW, FAST, Shape(requests=12, passes=1))
    rng = np.random.default_rng(8)
    for file in sorted((tmp_path / "run" / "scores").glob("*.npy")):
        rows = np.load(file)
        change(rows, rng.random(len(rows)) < 1 / 3)
        np.save(file, rows)
    assert verdict.judge(reading.load(Run.open(run.path)), plan.load("strict")).outcome in ("undecided", "different")


def test_arbitrary_tokens_weigh_by_how_sure_the_reference_is() -> None:
    """d and v against the mean and the variance of the log-ratio of the mixture, by enumeration over the cells."""
    for law in (LAW, np.array([0.999, 0.0006, 0.0003, 0.0001])):
        every = block(law, [0, 1, 2, 3])
        d, v = residuals.junk_weighted(every)
        share = residuals.ARBITRARY
        g = np.log(((1 - share) * law + share * np.array([0, 0, 0, 1])) / law)
        assert d == pytest.approx(g - law @ g)
        assert v == pytest.approx(np.full(4, law @ (g - law @ g) ** 2))
