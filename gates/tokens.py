"""All that is computed once over the scored tokens of one arm, a block at a time; the checks take from it."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gates import oracles, residuals, strata
from gates.alternatives import ALTERNATIVES, Alternative, log_ratios
from gates.eprocess import EProcess
from gates.evidence import Arm, Pass
from gates.pit import Uniformity
from gates.residuals import Cells, Floats, Residuals
from gates.scored import Ints

STATISTICS = ("likelihood", "first_choice", "first_choice_weighted", "tail", "junk", "junk_weighted", "eos")


@dataclass(slots=True)
class StratumSums:
    """log_ratios: (levels, J) Σ over the tokens of each level; tokens: (levels,) how many."""

    log_ratios: Floats
    tokens: Ints

    @staticmethod
    def empty(stratum: strata.Stratum, alternatives: Sequence[Alternative] = ALTERNATIVES) -> "StratumSums":
        levels = len(strata.LEVELS[stratum])
        return StratumSums(np.zeros((levels, len(alternatives))), np.zeros(levels, np.int64))


@dataclass(slots=True)
class Tokens:
    """residuals: statistic → profile → its residuals, in launch order. levels: stratum → profile → (n,) of each."""

    residuals: dict[str, dict[str, Residuals]]  # each oracle's among them, as oracles.statistic names them
    levels: dict[strata.Stratum, dict[str, Ints]]
    evidence: EProcess = field(default_factory=EProcess.empty)
    of_profiles: dict[str, Floats] = field(default_factory=dict)  # profile → (J,) Σ of log ratios
    of_strata: dict[strata.Stratum, StratumSums] = field(default_factory=dict)
    uniformity: Uniformity = field(default_factory=Uniformity.empty)
    oracles: tuple[str, ...] = ()
    gains: dict[str, float] = field(default_factory=dict)  # oracle → Σ of what its residual would gain, were it all its

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        return self.evidence.alternatives


_KNOWN: "weakref.WeakKeyDictionary[Arm, Tokens]" = weakref.WeakKeyDictionary()


def of(arm: Arm) -> Tokens:
    """Computed at the first call; an arm never changes."""
    if arm not in _KNOWN:
        _KNOWN[arm] = _computed(arm)
    return _KNOWN[arm]


def take(arm: Arm, computed: Tokens) -> None:
    """For an arm whose tokens are added up elsewhere, as they come: `of` gives what was taken."""
    _KNOWN[arm] = computed


def by_profile(arm: Arm, profiles: Sequence[str], statistic: str) -> dict[str, Residuals]:
    """profile → residuals over its passes. Profiles without scored tokens are left out."""
    found = of(arm).residuals[statistic]
    return {name: found[name] for name in profiles if name in found}


def _computed(arm: Arm) -> Tokens:
    statistics = (*STATISTICS, *(oracles.statistic(name) for name in arm.oracles))
    alternatives = (*ALTERNATIVES, *(one for name in arm.oracles for one in oracles.alternatives(name)))
    made = Tokens({name: {} for name in statistics}, {stratum: {} for stratum in strata.LEVELS}, oracles=arm.oracles)
    made.evidence = EProcess.empty(alternatives)
    made.of_strata = {stratum: StratumSums.empty(stratum, alternatives) for stratum in strata.LEVELS}
    functions = (
        residuals.likelihood,
        residuals.first_choice,
        residuals.first_choice_weighted,
        residuals.tail,
        residuals.junk,
        residuals.junk_weighted,
        residuals.eos(arm.eos),
    )
    parts: dict[str, list[list[Residuals]]] = {}
    known: dict[str, list[dict[strata.Stratum, Ints]]] = {}
    replies: dict[str, int] = {}
    for one in arm.passes:
        if len(one.scored.rows):
            levels = strata.levels(one)
            computed = _pass(one, functions, levels, made, replies.get(one.profile, 0))
            parts.setdefault(one.profile, []).append(computed)
            known.setdefault(one.profile, []).append(levels)
        replies[one.profile] = replies.get(one.profile, 0) + len(one.replies)
    for profile, passes in parts.items():
        for name, column in zip(statistics, zip(*passes, strict=True), strict=True):
            made.residuals[name][profile] = residuals.concatenated(column)
        for stratum in strata.LEVELS:
            made.levels[stratum][profile] = np.concatenate([levels[stratum] for levels in known[profile]])
    return made


def _pass(
    one: Pass,
    functions: Sequence[residuals.Statistic],
    levels: dict[strata.Stratum, Ints],
    made: Tokens,
    first_reply: int,
) -> list[Residuals]:
    n = len(one.scored.rows)
    out = [(np.empty(n), np.empty(n)) for _ in (*functions, *made.oracles)]
    rng = np.random.default_rng(np.unique(one.scored.rows["request"])[:64].tolist())
    for start, block in residuals.blocks(one.scored.rows, one.law):
        part = slice(start, start + len(block.cell))
        for (d, v), function in zip(out, functions, strict=False):  # the oracles' follow
            d[part], v[part] = function(block)
        made.uniformity.feed(block, rng)
        ratios = log_ratios(block)
        if made.oracles:
            ratios = np.concatenate([ratios, *_asked(one, block, part, made, out[len(functions) :])], axis=1)
        made.evidence.feed(ratios)
        made.of_profiles[one.profile] = made.of_profiles.get(one.profile, 0) + ratios.sum(axis=0)
        for stratum, of_level in levels.items():
            _add(made.of_strata[stratum], of_level[part], ratios)
    return [Residuals(d, v, one.scored.reply + first_reply) for d, v in out]


def _asked(
    one: Pass, block: Cells, part: slice, made: Tokens, out: Sequence[tuple[Floats, Floats]]
) -> Iterator[Floats]:
    """Log ratios of each oracle's alternatives; its residuals go to `out`."""
    for name, (d, v) in zip(made.oracles, out, strict=True):
        seen = oracles.odds(block, one.oracles.get(name), part.start)
        d[part], v[part], gain = oracles.residual(seen)
        made.gains[name] = made.gains.get(name, 0.0) + float(gain.sum())
        yield oracles.log_ratios(seen)


def _add(sums: StratumSums, level: Ints, ratios: Floats) -> None:
    # Not as a product of matrices: that takes threads, which stand in each other's way on a busy machine.
    for place in np.unique(level[level >= 0]):
        inside = level == place
        sums.log_ratios[place] += ratios[inside].sum(axis=0)
        sums.tokens[place] += int(inside.sum())
