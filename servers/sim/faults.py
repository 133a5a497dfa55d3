"""Planted faults: what a lossy server does, done to what is sampled or answered, and to nothing that says so.

The engine still scores, and reports log-probabilities, by its true model: a fault shows in the tokens alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from servers.sim.sampling import Law, Sampling, Vector, draw, law_of, normalized, residual, shaped
from servers.sim.sequence import Sequence as Running
from servers.sim.tokenizer import EOS

Fault = Literal[
    "temperature-0.95",
    "temperature-0.98",
    "temperature-1.05",
    "top-p-0.98",
    "top-p-0.95",
    "top-k-20",
    "min-p-0.05",
    "greedy-0.01",
    "greedy-0.05",
    "greedy-0.20",
    "typical",
    "threshold-0.5",
    "threshold-0.8",
    "unverified-0.10",
    "noise-0.005",
    "noise-0.01",
    "noise-0.03",
    "smaller",
    "junk-0.001",
    "same-seed",
    "replay",
    "under-load",
    "late",
    "dishonest",
    "short",
    "dropped",
    "usage",
    "bundled",
]
NAMES: tuple[str, ...] = get_args(Fault)

BUSY = 6  # sequences in a step from which on `under-load` cheapens
LATE = 24  # tokens into a reply from which on `late` does
DROPPED = 0.05  # share of the requests
USAGE = 1.2  # times the tokens that there were
BUNDLED = 4  # steps whose tokens are sent as one chunk

Change = Callable[[Vector, int], Vector]
"""(the law that should be sampled from, the row of the model it stands in) → the one that is."""

Verify = Callable[[Sequence[int], Sequence[Law], Sequence[Law], np.random.Generator], list[int]]


def _sampled(**settings: float) -> Change:
    sampling = Sampling(**settings)  # type: ignore[arg-type]
    return lambda p, row: shaped(p, sampling)


def _greedy(share: float) -> Change:
    def change(p: Vector, row: int) -> Vector:
        q = (1 - share) * p
        q[p.argmax()] += share
        return q

    return change


def _noise(sd: float) -> Change:
    """Frozen: a row is off by the same whenever it is visited."""

    def change(p: Vector, row: int) -> Vector:
        return normalized(p * np.exp(sd * np.random.default_rng((7, row)).standard_normal(len(p))))

    return change


def _smaller(p: Vector, row: int) -> Vector:
    """Another model of the family: noisier, and a little flatter."""
    noise = np.random.default_rng((11, row)).standard_normal(len(p))
    return normalized(np.where(p > 0, np.maximum(p, 1e-300) ** 0.92, 0) * np.exp(noise))


def _junk(p: Vector, row: int) -> Vector:
    return np.asarray(0.999 * p + 0.001 / len(p), np.float64)


def _short(p: Vector, row: int) -> Vector:
    """Ends 1.3 times as readily."""
    q = p.copy()
    q[EOS] = min(1.3 * p[EOS], 1.0)
    rest = 1 - p[EOS]
    if rest > 0:
        others = np.arange(len(p)) != EOS
        q[others] *= (1 - q[EOS]) / rest
    return q


_COLD = _sampled(temperature=0.9)

CHANGES: Mapping[str, Change] = {
    "temperature-0.95": _sampled(temperature=0.95),
    "temperature-0.98": _sampled(temperature=0.98),
    "temperature-1.05": _sampled(temperature=1.05),
    "top-p-0.98": _sampled(top_p=0.98),
    "top-p-0.95": _sampled(top_p=0.95),
    "top-k-20": _sampled(top_k=20),
    "min-p-0.05": _sampled(min_p=0.05),
    "greedy-0.01": _greedy(0.01),
    "greedy-0.05": _greedy(0.05),
    "greedy-0.20": _greedy(0.20),
    "noise-0.005": _noise(0.229),
    "noise-0.01": _noise(0.324),
    "noise-0.03": _noise(0.57),
    "smaller": _smaller,
    "junk-0.001": _junk,
    "short": _short,
    "dishonest": _COLD,
    "under-load": _COLD,
    "late": _COLD,
}


def change(fault: str | None) -> Change | None:
    """None where the fault leaves the law as it is."""
    return CHANGES.get(fault) if fault is not None else None


def applies(fault: str | None, sequence: Running, ahead: int, running: int) -> bool:
    """Whether the changed law holds for the token `ahead` of the reply's last one."""
    if fault == "under-load":
        return running >= BUSY
    return fault != "late" or len(sequence.tokens) + ahead >= LATE


# Verification that is not exact.


def drafting(fault: str | None, law: Law) -> Law:
    """What drafts are drawn from. Servers with a threshold draft what is likeliest (SGLang's trees of drafts)."""
    return law_of(shaped(law.p, Sampling(temperature=0))) if fault in _THRESHOLDS else law


def typical(drafted: Sequence[int], target: Sequence[Law], draft: Sequence[Law], rng: np.random.Generator) -> list[int]:
    """A draft passes where p ≥ min(ε, δ·e^−H) (Medusa's typical acceptance, ε = .09, δ = .3), else a fresh draw."""

    def passes(position: int, token: int) -> bool:
        p = target[position].p
        entropy = -float((p * np.log(np.maximum(p, 1e-300))).sum())
        return bool(p[token] >= min(0.09, 0.3 * np.exp(-entropy)))

    return _until(drafted, target, passes, lambda position: target[position], rng)


def threshold(least: float) -> Verify:
    """A draft that the model gives this chance passes untested (SGLang: --speculative-accept-threshold-single)."""

    def verify(
        drafted: Sequence[int], target: Sequence[Law], draft: Sequence[Law], rng: np.random.Generator
    ) -> list[int]:
        def passes(position: int, token: int) -> bool:
            p, q = target[position].p[token], draft[position].p[token]
            return bool(p >= least or rng.random() * q < p)

        return _until(drafted, target, passes, lambda position: residual(target[position], draft[position]), rng)

    return verify


def unverified(
    drafted: Sequence[int], target: Sequence[Law], draft: Sequence[Law], rng: np.random.Generator
) -> list[int]:
    """One draft in ten is taken as it is."""

    def passes(position: int, token: int) -> bool:
        return bool(rng.random() < 0.1 or rng.random() * draft[position].p[token] < target[position].p[token])

    return _until(drafted, target, passes, lambda position: residual(target[position], draft[position]), rng)


def _until(
    drafted: Sequence[int],
    target: Sequence[Law],
    passes: Callable[[int, int], bool],
    instead: Callable[[int], Law],
    rng: np.random.Generator,
) -> list[int]:
    for position, token in enumerate(drafted):
        if not passes(position, token):
            return [*drafted[:position], draw(instead(position), rng)]
    return [*drafted, draw(target[len(drafted)], rng)]


_THRESHOLDS = ("threshold-0.5", "threshold-0.8")

VERIFIERS: Mapping[str, Verify] = {
    "typical": typical,
    "threshold-0.5": threshold(0.5),
    "threshold-0.8": threshold(0.8),
    "unverified-0.10": unverified,
}


def generator(
    fault: str | None, prompt: Sequence[int], seed: int | None, engine: np.random.Generator
) -> np.random.Generator:
    """A request's own generator where it has a seed, else the engine's, shared by all."""
    if fault == "same-seed":
        return np.random.default_rng(1)
    if fault == "replay":
        return np.random.default_rng([2, *prompt])  # a prompt seen before gets its earlier reply again
    return engine if seed is None else np.random.default_rng(seed)


def changed(law: Law, row: int, fault: Change) -> Law:
    return law_of(fault(law.p, row))
