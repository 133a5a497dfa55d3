"""Two servers' streams, compared as a run is: plan strict's token checks, looked at after every pass.

The e-process, its strata, the diagnosis, the sequences, pit and what is excused are the production code's. Only sums
over replies are kept as they come, where that code adds up all tokens anew at each look.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gates import checks, pit, plan, rejection, residuals, strata, tokens, unsettled, verdict
from gates.alternatives import Alternative
from gates.checks import Levels, Terms
from gates.checks import junk as junk_check
from gates.checks import pit as pit_check
from gates.checks import tail as tail_check
from gates.decision import Statistic, Suspicion, Totals, decide
from gates.evidence import Arm, Evidence, Role
from gates.finding import Finding, Outcome
from gates.rejection import Suspected
from gates.selftest.tables import EOS, K, Pool
from gates.sequential import Sums
from gates.strata import Stratum

PROFILE = "streams"
REPLY = 300  # tokens a reply; on the average one of them is an end
LOADS = (1, 2, 4, 8, 16)
"""Requests in flight while each reply of a pass comes; so many replies are a pass."""

LEVELS_OF_LOADS = np.array([0, 1, 1, 2, 2])  # in gates.strata
POSITIONS = np.array([0, 1, 16, 128])  # where its levels start

Served = Callable[[], npt.NDArray[np.int64]]
"""One pass: (len(LOADS), REPLY) flat cells, a reply a row."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class OnDemand(dict[Key, Value]):
    """Every token's residuals are only asked for where a stratum rejects."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> Value:
        self[key] = self._make(key)
        return self[key]


@dataclass(frozen=True, slots=True)
class Sent:
    """All that a server has sent, (len(LOADS), REPLY) flat cells a pass. Apart from Server: what the arm's tokens are
    made from must not hold the arm, or neither would ever be freed."""

    pool: Pool
    passes: list[npt.NDArray[np.int64]]

    def residuals(self, name: str) -> dict[str, residuals.Residuals]:
        cells = np.concatenate(self.passes)
        reply = np.repeat(np.arange(len(cells)), REPLY)
        return {PROFILE: residuals.Residuals(self.pool.d[name][cells].ravel(), self.pool.v[name][cells].ravel(), reply)}

    def levels(self, stratum: Stratum) -> dict[str, npt.NDArray[np.int64]]:
        return {PROFILE: np.tile(_levels(stratum).ravel(), len(self.passes))}


class Server:
    """What one server has sent so far. judged: the candidate, whose e-process is kept too."""

    def __init__(self, pool: Pool, serve: Served, role: Role, rng: np.random.Generator) -> None:
        self._pool, self._serve, self._rng = pool, serve, rng
        self._replies: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in pool.d}
        self._predicted = dict.fromkeys(pool.d, 0.0)
        self._squares = dict.fromkeys(pool.d, 0.0)
        self._sent = Sent(pool, [])
        self._tail = 0
        self.tokens = 0
        self.arm = Arm(role, role, [], [], frozenset({EOS}))
        self.known = tokens.Tokens(OnDemand(self._sent.residuals), OnDemand(self._sent.levels))
        self.known.of_strata = {name: tokens.StratumSums.empty(name) for name in strata.LEVELS}
        tokens.take(self.arm, self.known)

    def go_on(self) -> None:
        cells = self._serve()
        self.known.residuals.clear()
        self.known.levels.clear()
        self.tokens += cells.size
        self._sent.passes.append(cells)
        for name, d in self._pool.d.items():
            drawn = d[cells]
            self._replies[name].append(drawn.sum(axis=1))
            self._squares[name] += float((drawn**2).sum())
            self._predicted[name] += float(self._pool.v[name][cells].sum())
            if name == "tail":
                self._tail += int((drawn > 0).sum())
        self._fall(cells.ravel())
        if self.arm.role == "candidate":
            self._suspect(self._pool.log_ratios[cells].astype(np.float64))

    def _fall(self, cells: npt.NDArray[np.int64]) -> None:
        cells = cells[self._pool.open[cells // (K + 1)]]
        u = self._pool.below[cells] + self._rng.random(len(cells)) * self._pool.mass[cells]
        uniformity = self.known.uniformity
        uniformity.sums, uniformity.n = uniformity.sums + pit.legendre(u).sum(axis=0), uniformity.n + len(u)

    def _suspect(self, ratios: npt.NDArray[np.float64]) -> None:
        self.known.evidence.feed(ratios.reshape(-1, ratios.shape[2]))
        self.known.of_profiles[PROFILE] = self.known.evidence.totals
        for stratum, sums in self.known.of_strata.items():
            levels = _levels(stratum)
            for level in np.unique(levels):
                inside = levels == level
                sums.log_ratios[level] += ratios[inside].sum(axis=0)
                sums.tokens[level] += int(inside.sum())

    def sums(self, name: str) -> Sums:
        """As gates.sequential.sums makes them of residuals."""
        of_replies = np.concatenate(self._replies[name])
        total, mean = float(of_replies.sum()), float(of_replies.sum()) / self.tokens
        scatter = self._squares[name] - self.tokens * mean**2
        clusters = float(((of_replies - mean * REPLY) ** 2).sum())
        return Sums(
            n=self.tokens,
            replies=len(of_replies),
            total=total,
            predicted=self._predicted[name],
            spread=max(self._predicted[name], scatter, clusters),
        )

    def in_tail(self) -> tuple[int, float]:
        """(tokens in the tail, tokens expected there)"""
        return self._tail, self._tail - float(np.concatenate(self._replies["tail"]).sum())


def _levels(stratum: Stratum) -> npt.NDArray[np.int64]:
    """(len(LOADS), REPLY) of each token of a pass; every token is a chunk."""
    shape = (len(LOADS), REPLY)
    if stratum == "position":
        return np.broadcast_to(np.searchsorted(POSITIONS, np.arange(REPLY), side="right") - 1, shape)
    if stratum == "in_flight":
        return np.broadcast_to(LEVELS_OF_LOADS[:, None], shape)
    if stratum == "previous_chunk":
        return np.broadcast_to(np.minimum(np.arange(REPLY), 1), shape)
    return np.zeros(shape, np.int64)


@dataclass(frozen=True)
class Rules:
    """How a plan splits its level over the token checks, as gates.verdict does for one profile."""

    plan: plan.Plan

    @cached_property
    def _modules(self) -> dict[str, checks.Check]:
        return {name: checks.load(name) for name in (*self.plan.required, *self.plan.if_available)}

    def levels(self, check: str) -> tuple[Levels, Levels]:
        """(of all tokens, of the profile)"""
        alpha, own = self.plan.alpha_different, max(1, self._modules[check].SEQUENCES)
        sequences = sum(module.SEQUENCES for module in self._modules.values())
        outside, gap = alpha / (2 * sequences), alpha * verdict.GAP / own
        shares = (verdict.POOLED / 2, verdict.STRATA / 2)
        pooled, profile = (Levels(alpha * share / sequences, gap, outside) for share in shares)
        return pooled, profile

    def p_value(self, look: int) -> float:
        values = sum(module.P_VALUES for module in self._modules.values())
        return self.plan.alpha_different * verdict.P_VALUES / values / (look * (look + 1))

    def suspected(self, evidence: Evidence) -> Suspected:
        alpha = self.plan.alpha_different
        return rejection.suspected(evidence, alpha * verdict.POOLED / 2, alpha * verdict.STRATA / 2, self.plan)

    def terms(self, look: int) -> Terms:
        pooled, profile = self.levels("pit")  # of no sequence, so that they are not used
        asked = self.plan
        return Terms(
            True, pooled, profile, self.p_value(look), asked.level_equivalent, asked.replies, asked.profile_replies
        )

    def of_strata(self, evidence: Evidence, found: Suspected) -> list[Finding]:
        return rejection.of_strata(evidence, found, self.plan.alpha_different * verdict.GAP, self.plan)


QUESTIONS: dict[str, tuple[str, ...]] = {
    "likelihood": ("likelihood",),
    "first_choice": ("first_choice", "first_choice_weighted"),
    "tail": ("tail",),
    "junk": ("junk", "junk_weighted"),
    "eos": ("eos",),
}
"""check → its statistics; the first has the margin."""

TUNED_TO = {"junk_weighted": junk_check.WEIGHTED_TUNED_TO}

REQUIRED = ("likelihood", "first_choice", "tail", "junk")
"""Checks that must be equivalent or pass. eos would too, where replies are so short that they stop often enough."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look. tokens: of each server. likeliest: what it looks like, None where the e-process rejects nothing."""

    tokens: int
    outcome: Outcome
    likeliest: Alternative | None


class Comparison:
    """candidate and stock get their passes in turn, and are looked at when both have had one."""

    def __init__(self, candidate: Server, stock: Server, rules: Rules) -> None:
        self.candidate, self.stock, self.rules = candidate, stock, rules
        self.looks = 0
        self.evidence = Evidence(
            stock=stock.arm,
            candidate=candidate.arm,
            profiles=[PROFILE],
            open_loop=frozenset(),
            runs=[],
            ended=True,
            whole=True,
            paired=True,
            warnings=[],
        )

    def passes(self, most_tokens: int) -> Iterator[Seen]:
        while self.candidate.tokens < most_tokens:
            self.candidate.go_on()
            self.stock.go_on()
            self.looks += 1
            yield self.look()

    def look(self) -> Seen:
        found = self.rules.suspected(self.evidence)
        asked = self.rules.plan.required
        findings = [one for check in QUESTIONS if check in asked for one in self._asked(check, found)]
        if "pit" in asked:
            findings += pit_check.check(self.evidence, pit_check.Settings(), self.rules.terms(self.looks)).findings
        findings += self._strata(findings, found)
        findings = rejection.excused(findings, found)
        waits = unsettled.unsettled(findings, self.evidence, found, self.rules.suspected)
        findings = findings if waits is None else waits.among(findings)
        return Seen(self.candidate.tokens, _outcome(findings), found.likeliest)

    def _strata(self, findings: Sequence[Finding], found: Suspected) -> list[Finding]:
        known = {one.check for one in findings if one.outcome == "different"}
        return [one for one in self.rules.of_strata(self.evidence, found) if one.check not in known]

    def _asked(self, check: str, found: Suspected) -> list[Finding]:
        """Of all tokens, and of the one profile by its own margin and level."""
        findings = []
        for profile, levels in zip((None, PROFILE), self.rules.levels(check), strict=True):
            statistics = self._statistics(check, profile is not None)
            asked = self.rules.plan
            replies = asked.replies if profile is None else asked.profile_replies
            suspicion = Suspicion(profile in found.profiles, found.excusable)
            decided = decide(statistics[0], statistics[1:], levels, asked.level_equivalent, replies, suspicion)
            outcome = decided.outcome
            if check == "tail" and profile is None and self._truncated():
                outcome = "different"
            margin = decided.margin if statistics[0].bounded else None
            findings.append(
                Finding(check=check, profile=profile, required=True, outcome=outcome, margin=margin, says="")
            )
        return findings

    def _statistics(self, check: str, of_profile: bool) -> list[Statistic]:
        names = QUESTIONS[check]
        both = [(self.candidate.sums(name), self.stock.sums(name)) for name in names]
        first = both[0][0]
        margin = self._margin(check, first, of_profile)
        scales = [own.variance / first.variance if first.variance > 0 else 1.0 for own, _ in both]
        bounded = [place > 0 or check not in ("tail", "junk") for place in range(len(names))]
        return [
            Statistic(Totals(*pair, pair), TUNED_TO.get(name, margin * scale), bound)
            for name, pair, scale, bound in zip(names, both, scales, bounded, strict=True)
        ]

    def _margin(self, check: str, own: Sums, of_profile: bool) -> float:
        """A token's, as the check has it of its settings in the plan."""
        asked = self.rules.plan.required[check].model_dump()
        if check == "likelihood":
            return float(asked["profile_margin_temperature" if of_profile else "margin_temperature"]) * own.variance
        if check == "first_choice":
            return float(asked["profile_margin" if of_profile else "margin"])
        if check == "eos":
            return (3 if of_profile else 1) * float(asked["margin_ratio"]) * own.variance
        return tail_check.TUNED_TO if check == "tail" else junk_check.TUNED_TO

    def _truncated(self) -> bool:
        chance = tail_check.p_value(self.candidate.in_tail(), self.stock.in_tail())
        return chance <= self.rules.p_value(self.looks)


def _outcome(findings: Sequence[Finding]) -> Outcome:
    if any(one.outcome == "different" for one in findings):
        return "different"
    asked = [one.outcome for one in findings if one.check in REQUIRED]
    return "equivalent" if all(outcome in ("equivalent", "passed") for outcome in asked) else "undecided"


def first(seen: Iterator[Seen], wanted: Outcome) -> Seen | None:
    """The first look that says what is wanted."""
    return next((one for one in seen if one.outcome == wanted), None)
