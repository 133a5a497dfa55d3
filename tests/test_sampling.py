"""Laws of sampling settings: against the embedded engine's own, by hand over a few tokens, and by error rates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from gates import report, residuals, sampling
from gates.finding import Verdict
from gates.residuals import Cells, cells
from gates.sampling import EDGE_MASS, EDGE_NAT, Law
from gates.scored import Scored
from loadgen.cli import simulated
from loadgen.compare import Load
from loadgen.profile import Sampling, load, overridden
from loadgen.record import SCORE_DTYPE, SCORED_TOP_K, Run
from servers.sim.sampling import Sampling as Engine
from servers.sim.sampling import shaped
from servers.sim.settings import Settings

ASKED: dict[str, Any] = Sampling().asked()


def rows(p: np.ndarray[Any, Any], tokens: list[int] | np.ndarray[Any, Any], k: int = SCORED_TOP_K) -> Any:
    """One law at every position, its k likeliest listed; p falls, and a token's id is its place."""
    out = np.zeros(len(tokens), SCORE_DTYPE)
    out["position"], out["token_id"] = np.arange(len(tokens)), tokens
    out["ids"], out["logprobs"] = -1, -np.inf
    with np.errstate(divide="ignore"):
        out["logprob"] = np.log(p[out["token_id"]])
        n = min(k, len(p))
        out["ids"][:, :n], out["logprobs"][:, :n] = np.arange(n), np.log(p[:n])
    return out


def under(law: Law, p: np.ndarray[Any, Any], tokens: list[int], k: int = SCORED_TOP_K) -> Cells:
    found = rows(p, tokens, k)
    return law(cells(found), found["logprob"].astype(np.float64))


# Far from every cut used below, so that no token counts as another.
SPREAD = np.array([0.5, 0.2, 0.12, 0.08, 0.05, 0.03, 0.015, 0.005])
LARGE = np.concatenate([SPREAD * 0.98, np.full(100, 0.0002)])


@pytest.mark.parametrize("p", [SPREAD, LARGE], ids=["all listed", "a hundred unlisted"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 4, 1.0, 0.0),
        (0.7, 6, 1.0, 0.0),
        (1.4, 8, 1.0, 0.0),
        (0.7, 6, 0.9, 0.0),
        (1.0, 7, 1.0, 0.13),
        (0.6, 7, 0.95, 0.005),
        (1.3, 5, 0.8, 0.3),
        (0.3, 2, 1.0, 0.0),
    ],
)
def test_the_law_is_what_the_engine_samples(
    p: np.ndarray[Any, Any], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Against the embedded engine's own shaping of the whole vocabulary, which is independent of the gates."""
    expected = shaped(p, Engine(temperature, min_p, top_k, top_p))
    found = under(Law(temperature, top_k, top_p, min_p, cuts_first=False), p, list(range(len(p))))
    listed = min(len(p), SCORED_TOP_K)
    assert found.p[0, :listed] == pytest.approx(expected[:listed], abs=1e-6)
    assert found.other == pytest.approx(np.zeros(len(p)), abs=1e-9)
    likely = np.flatnonzero(expected)
    assert found.cell[likely].tolist() == likely.tolist()
    assert set(found.cell[expected == 0].tolist()) <= {SCORED_TOP_K}


def test_llama_cpp_cuts_before_it_divides() -> None:
    """Four tokens by hand: the first two hold .82 of three at temperature 1, and not at 2, where it takes all."""
    p = np.array([0.6, 0.25, 0.1, 0.05])
    first, last = (under(Law(2.0, 3, 0.82, 0.0, cuts_first=cuts), p, [0, 1, 2, 3]) for cuts in (True, False))
    two, three = (np.sqrt(p[:n]) / np.sqrt(p[:n]).sum() for n in (2, 3))
    assert first.p[0, :4] == pytest.approx([*two, 0, 0], abs=1e-6)
    assert last.p[0, :4] == pytest.approx([*three, 0], abs=1e-6)
    assert first.cell.tolist() == [0, 1, SCORED_TOP_K, SCORED_TOP_K]


def test_min_p_before_top_p_in_vllm_and_after_it_in_llama_cpp() -> None:
    """Of what min_p .3 leaves, .55/.8 = .69 holds top_p .65 alone; of everything, .55 does not."""
    p = np.array([0.55, 0.25, 0.1, 0.1])
    vllm, llama = (under(Law(1.0, 4, 0.65, 0.3, cuts_first=cuts), p, [0, 1, 2, 3]) for cuts in (False, True))
    assert vllm.p[0, :4] == pytest.approx([1, 0, 0, 0], abs=1e-6)
    assert llama.p[0, :4] == pytest.approx([0.6875, 0.3125, 0, 0], abs=1e-6)


def test_ties_at_the_cut_of_top_k_are_one_outcome() -> None:
    """vLLM keeps all that tie with the last; whichever is drawn counts as the last that is surely drawn."""
    p = np.array([0.5, 0.2, 0.1, 0.1, 0.06, 0.04])
    found = under(Law(1.0, 3, 1.0, 0.0, cuts_first=False), p, [0, 1, 2, 3, 4, 5])
    assert found.p[0, :6] == pytest.approx([0.5 / 0.9, 0.4 / 0.9, 0, 0, 0, 0], abs=1e-6)
    assert found.cell.tolist() == [0, 1, 1, 1, SCORED_TOP_K, SCORED_TOP_K]


@pytest.mark.parametrize(
    ("beyond_nat", "cell"), [(0.5 * EDGE_NAT, 1), (2 * EDGE_NAT, SCORED_TOP_K)], ids=["a last bit", "clearly beyond"]
)
def test_how_far_beyond_the_cut_decides(beyond_nat: float, cell: int) -> None:
    """Half a step under the last allowed token is chance; two steps are a token that cannot be."""
    p = np.array([0.6, 0.2, 0.1, 0.1 * np.exp(-beyond_nat), 0])
    p[4] = 1 - p.sum()
    found = under(Law(1.0, 3, 1.0, 0.0, cuts_first=False), p, [3])
    assert found.cell.tolist() == [cell]
    assert junk_of(found) == pytest.approx(float(cell == SCORED_TOP_K), abs=1e-5)


def junk_of(found: Cells) -> float:
    return float(residuals.junk(found)[0][0])


def test_an_unlisted_token_that_ties_with_the_end_of_the_list_is_known_by_its_own_figure() -> None:
    """top_k as long as the list: the twenty-first is not listed, and ties with the twentieth."""
    p = np.sort(np.random.default_rng(1).dirichlet(np.ones(30)))[::-1].copy()
    p[SCORED_TOP_K] = p[SCORED_TOP_K - 1]
    found = under(Law(1.0, SCORED_TOP_K, 1.0, 0.0, cuts_first=False), p, [SCORED_TOP_K, 29])
    assert found.cell[0] < SCORED_TOP_K
    assert found.cell[1] == SCORED_TOP_K


@pytest.mark.parametrize("top_k", [5, SCORED_TOP_K])
def test_of_an_unlisted_token_without_a_figure_the_end_of_the_list_decides(top_k: int) -> None:
    """A reference that samples itself does not tell it: it may tie with the last listed, and with no more than that."""
    found = rows(LARGE[:40], [30])
    found["logprobs"][:, :] = np.linspace(-1, -5, SCORED_TOP_K)
    block = Law(1.0, top_k, 1.0, 0.0, cuts_first=False)(cells(found), np.array([np.nan]))
    assert (block.cell[0] < SCORED_TOP_K) == (top_k == SCORED_TOP_K)


def test_what_is_near_the_cut_of_top_p_joins_the_last_sure_token() -> None:
    """.6 + .2 come within half the edge of .8: the third may or may not be drawn, and then counts as the second."""
    p = np.array([0.6, 0.2 + EDGE_MASS / 2, 0.15, 0.05 - EDGE_MASS / 2])
    found = under(Law(1.0, 4, 0.8, 0.0, cuts_first=False), p, [0, 1, 2, 3])
    total = 0.8 + EDGE_MASS / 2
    assert found.p[0, :4] == pytest.approx([0.6 / total, (0.2 + EDGE_MASS / 2) / total, 0, 0], abs=1e-6)
    assert found.cell.tolist() == [0, 1, 1, SCORED_TOP_K]


def test_cells_stay_ordered_where_the_last_one_grows() -> None:
    """Three tokens of nearly one chance at the cut become one, likelier than the first."""
    p = np.array([0.25, 0.19, 0.18, 0.175, 0.17, 0.035])
    found = under(Law(1.0, 5, 0.6, 0.0, cuts_first=False), p, [0, 1, 2, 3, 4])
    assert (np.diff(found.p[0]) <= 0).all()
    assert found.p[0].sum() == pytest.approx(1)
    assert found.ids[0, found.cell[0]] == 0


@pytest.mark.parametrize(
    "law",
    [
        Law(0.7, 20, 1.0, 0.0, cuts_first=False),
        Law(0.7, 20, 0.9, 0.05, cuts_first=False),
        Law(1.2, 5, 0.95, 0.0, cuts_first=True),
    ],
)
@pytest.mark.parametrize("statistic", [residuals.likelihood, residuals.first_choice, residuals.tail, residuals.junk])
def test_residuals_under_a_law_have_mean_zero(law: Law, statistic: residuals.Statistic) -> None:
    """By enumeration: Σ_x q(x) D(x) = 0 over the tokens x that can be drawn, at 200 laws of 40 tokens."""
    rng = np.random.default_rng(3)
    for concentration in (0.05, 0.3, 1.0):
        for p in np.sort(rng.dirichlet(np.full(40, concentration), 66), axis=1)[:, ::-1]:
            p = np.maximum(p, 1e-9)
            d, _ = statistic(under(law, p, list(range(40))))
            assert float(drawn_from(law, p) @ d) == pytest.approx(0, abs=3e-6)


def drawn_from(law: Law, p: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the setting leaves of a law without ties, written out token by token."""

    def tempered(q: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        powered = np.array([value ** (1 / law.temperature) for value in q])
        return powered / powered.sum()

    def nucleus(q: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        q, mass, left = q / q.sum(), 0.0, []
        for value in q:
            left.append(value if mass < law.top_p else 0.0)
            mass += value
        return np.array(left)

    def likely(q: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where(q >= law.min_p * q[0], q, 0)

    q = p if law.cuts_first else tempered(p)
    q = np.where(np.arange(len(q)) < law.top_k, q, 0)
    q = likely(nucleus(q)) if law.cuts_first else nucleus(likely(q))
    q = tempered(q) if law.cuts_first else q
    return np.asarray(q / q.sum())


def test_lossless_tokens_under_a_law_are_uniform_and_seldom_rejected() -> None:
    """The likelihood's z over 400 lossless streams of 500 tokens passes ±1.96 in 5 % of them, within the binomial."""
    rng = np.random.default_rng(8)
    law, size, streams, n = Law(0.7, 20, 0.95, 0.0, cuts_first=False), 60, 400, 500
    tables = np.sort(rng.dirichlet(np.full(size, 0.2), 50), axis=1)[:, ::-1] * (1 - 60e-9) + 1e-9
    laws = np.array([drawn_from(law, p) for p in tables])
    contexts = rng.integers(len(tables), size=streams * n)
    below = np.cumsum(laws, axis=1)[contexts]
    tokens = np.minimum((below < rng.random((len(contexts), 1))).sum(axis=1), law.top_k - 1)
    found = np.concatenate([rows(tables[context], [token]) for context, token in zip(contexts, tokens, strict=True)])
    scored = Scored(found, np.repeat(np.arange(streams), n), {})
    [likelihood] = residuals.residuals(scored, [residuals.likelihood], law=law)
    z = likelihood.d.reshape(streams, n).sum(axis=1) / np.sqrt(likelihood.v.reshape(streams, n).sum(axis=1))
    assert binom.ppf(0.001, streams, 0.05) <= int((np.abs(z) > 1.96).sum()) <= binom.ppf(0.999, streams, 0.05)


@pytest.mark.parametrize(
    ("changes", "dialect", "why"),
    [
        ({}, "vllm", None),
        ({"top_k": 0}, "vllm", None),
        ({"ignore_eos": True}, "vllm", None),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.1}, "vllm", None),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.9}, "llamacpp", None),
        ({"temperature": 0.7, "top_k": 20}, "sglang", None),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.9}, "sglang", "dialect sglang"),
        ({"temperature": 0.7, "top_k": 20}, "openai", "dialect openai"),
        ({"temperature": 0.7}, "vllm", "without a top_k"),
        ({"top_p": 0.9}, "vllm", "without a top_k"),
        ({"top_k": 40}, "vllm", "without a top_k"),
        ({"temperature": 0.0, "top_k": 20}, "vllm", "greedy"),
        ({"presence_penalty": 0.5, "top_k": 20}, "vllm", "presence_penalty"),
        ({"ignore_eos": True}, "llamacpp", "ignore_eos"),
    ],
)
def test_a_law_that_is_not_known_says_why(changes: dict[str, Any], dialect: str, why: str | None) -> None:
    """Exact where top_k is no longer than the list, and the engine's order is known; else a reason in words."""
    asked = ASKED | changes
    found = sampling.why_unknown(asked, dialect)
    assert (why is None and found is None) or (why is not None and why in (found or ""))
    assert (sampling.law(asked, dialect) is not None) == (found is None and bool(sampling.changes(asked)))


# Whole comparisons.


def judged(out: Path, body: dict[str, Any] | None) -> Verdict:
    profile = overridden(load("team"), {"requests": 96})
    asked = Sampling(temperature=0.7, top_k=20)
    prompts = profile.prompts.model_copy(update={"max_words": 40})
    profile = profile.model_copy(update={"sampling": asked, "prompts": prompts})
    engines = {"stock": Settings(seed=1), "candidate": Settings(seed=2, speculative=4)}
    simulated.compare(engines, Load((profile,), 2, seed=3), out, {"extra_body": body or {}})
    verdict = report.judged([Run.open(out)], "strict").verdict
    assert verdict is not None
    return verdict


def test_a_lossless_server_at_temperature_07_and_top_k_20_is_not_different(tmp_path: Path) -> None:
    """Every check of tokens has data, none rejects, and nothing came that the sampling forbids."""
    verdict = judged(tmp_path / "run", None)
    pooled = {finding.check: finding for finding in verdict.findings if finding.profile is None}
    assert verdict.outcome != "different"
    checks = ("likelihood", "first_choice", "tail", "junk", "pit", "eos")
    assert [pooled[name].missing for name in checks] == [None] * len(checks)
    assert pooled["junk"].estimate is not None and abs(pooled["junk"].estimate.value) < 1e-5
    assert "temperature 0.7, top_k 20" in pooled["likelihood"].says


def test_a_candidate_at_another_temperature_than_the_profiles_is_different(tmp_path: Path) -> None:
    """Temperature .6 where .7 was asked for."""
    verdict = judged(tmp_path / "run", {"temperature": 0.6})
    assert verdict.outcome == "different"
    assert "temperature" in (verdict.diagnosis or "")


def test_a_candidate_that_ignores_top_k_is_different(tmp_path: Path) -> None:
    """Tokens that cannot be are `other`: junk tells."""
    verdict = judged(tmp_path / "run", {"top_k": -1, "temperature": 1.0})
    assert "junk" in {finding.check for finding in verdict.findings if finding.outcome == "different"}
