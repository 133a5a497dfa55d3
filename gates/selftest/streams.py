"""Streams over a pool: when the e-process rejects them, and what the whole verdict says of two servers."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates.alternatives import ALTERNATIVES
from gates.checks import Levels
from gates.decision import Statistic, Suspicion, Totals, decide
from gates.eprocess import log_mean_exp
from gates.finding import Outcome
from gates.rejection import EXCUSABLE
from gates.selftest.tables import Draw, Pool
from gates.sequential import Sums

BATCH = 100  # streams at a time
EVERY = 50  # tokens between two looks at E
REPLY = 300  # tokens a reply, where replies matter


@dataclass(frozen=True, slots=True)
class Course:
    """E of many streams. sup: (streams,) the largest log E; crossed: (streams,) tokens until it passed the bound, −1
    where it never did; likeliest: (streams,) the alternative that led then (or at the end)."""

    sup: npt.NDArray[np.float64]
    crossed: npt.NDArray[np.int64]
    likeliest: npt.NDArray[np.int64]


def courses(pool: Pool, draw: Draw, streams: int, tokens: int, bound: float) -> Course:
    """bound: of log E. Streams are looked at every EVERY tokens, and go on to their end."""
    parts = [_courses(pool, draw, min(BATCH, streams - start), tokens, bound) for start in range(0, streams, BATCH)]
    fields = ("sup", "crossed", "likeliest")
    return Course(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


def _courses(pool: Pool, draw: Draw, streams: int, tokens: int, bound: float) -> Course:
    totals = np.zeros((streams, len(ALTERNATIVES)))
    sup, crossed = np.zeros(streams), np.full(streams, -1)
    likeliest = np.zeros(streams, np.int64)
    for seen in range(EVERY, tokens + 1, EVERY):
        cells = draw(streams * EVERY)
        totals += pool.log_ratios[cells].reshape(streams, EVERY, -1).sum(axis=1, dtype=np.float64)
        log_e = log_mean_exp(totals)
        sup = np.maximum(sup, log_e)
        running = crossed < 0
        likeliest[running] = totals[running].argmax(axis=1)
        crossed[running & (log_e >= bound)] = seen
    return Course(sup, crossed, likeliest)


def chunked_courses(
    pool: Pool, draw: Draw, accepted: npt.NDArray[np.bool_], drafts: int, streams: int, tokens: int
) -> npt.NDArray[np.float64]:
    """(streams,) the largest log of the mean over chunk indices of E: the e-process over that stratum.

    draw gives flat outcomes of which `accepted` says whether the drafted token passed, and `pool` what they are worth.
    """
    found = []
    for _ in range(streams):
        sums = np.zeros((drafts + 1, len(ALTERNATIVES)))
        since, sup = 0, 0.0
        for _ in range(0, tokens, 250 * EVERY):
            outcomes = draw(250 * EVERY)
            index, since = _chunk_index(accepted[outcomes], drafts, since)
            ratios = pool.log_ratios[outcomes]
            sums += np.stack([ratios[index == place].sum(axis=0, dtype=np.float64) for place in range(drafts + 1)])
            sup = max(sup, float(log_mean_exp(log_mean_exp(sums)[None, :])[0]))
        found.append(sup)
    return np.array(found)


def _chunk_index(accepted: npt.NDArray[np.bool_], drafts: int, since: int) -> tuple[npt.NDArray[np.int64], int]:
    """A chunk ends with a rejected draft, or with the token that is drawn behind all accepted ones."""
    place = np.arange(len(accepted))
    last = np.maximum.accumulate(np.where(accepted, -1, place))
    before = np.concatenate([[-1], last[:-1]])
    distance = np.where(before < 0, place + since, place - before - 1)
    end = int(distance[-1]) + 1 if accepted[-1] else 0
    return distance % (drafts + 1), end % (drafts + 1)


# The whole verdict, as the plan strict decides it over one profile.

MARGINS = {"likelihood": 0.025, "first_choice": 0.01}
LEVELS = Levels(reject=0.001 * 0.25 / 6, gap=0.001 * 0.2, outside=0.001 / 12)
E_BOUND = float(np.log(4 / 0.001))


class Arm:
    """Running sums of one server's stream, reply by reply."""

    def __init__(self, pool: Pool, draw: Draw) -> None:
        self._pool, self._draw = pool, draw
        self._replies: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in pool.d}
        self._predicted = dict.fromkeys(pool.d, 0.0)
        self._squares = dict.fromkeys(pool.d, 0.0)
        self.tokens = 0
        self.log_totals = np.zeros(len(ALTERNATIVES))
        self.log_sup = 0.0

    def go_on(self, replies: int) -> None:
        cells = self._draw(replies * REPLY)
        self.tokens += len(cells)
        for name, d in self._pool.d.items():
            drawn = d[cells]
            self._replies[name].append(drawn.reshape(replies, REPLY).sum(axis=1))
            self._squares[name] += float((drawn**2).sum())
            self._predicted[name] += float(self._pool.v[name][cells].sum())
        ratios = self._pool.log_ratios[cells].reshape(replies, REPLY, -1).sum(axis=1, dtype=np.float64)
        running = self.log_totals + np.cumsum(ratios, axis=0)
        self.log_sup = max(self.log_sup, float(log_mean_exp(running).max()))
        self.log_totals = running[-1]

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


def verdict(candidate: Arm, stock: Arm) -> Outcome:
    """Of plan strict's token checks but pit and eos, over equal numbers of tokens of both."""
    likeliest = ALTERNATIVES[int(np.argmax(candidate.log_totals))]
    rejects = candidate.log_sup >= E_BOUND
    suspicion = Suspicion(rejects, excused=not rejects or likeliest.family in EXCUSABLE)
    statistics = {name: _statistic(candidate, stock, name) for name in ("likelihood", "first_choice")}
    weighted = _statistic(candidate, stock, "first_choice_weighted")
    decisions = [
        decide(statistics["likelihood"], [], LEVELS, 0.95, 100, suspicion),
        decide(statistics["first_choice"], [weighted], LEVELS, 0.95, 100, suspicion),
    ]
    if any(decision.outcome == "different" for decision in decisions):
        return "different"
    inside = all(decision.outcome == "equivalent" for decision in decisions)
    rest = [_statistic(candidate, stock, name) for name in ("tail", "junk")]
    found = [decide(one, [], LEVELS, 0.95, 100, suspicion).outcome for one in rest]
    if "different" in found and not (inside and suspicion.excused):
        return "different"
    return "equivalent" if inside else "undecided"


def _statistic(candidate: Arm, stock: Arm, name: str) -> Statistic:
    own, other = candidate.sums(name), stock.sums(name)
    if name == "likelihood":
        margin, bounded = MARGINS[name] * own.variance, True
    elif name in MARGINS:
        margin, bounded = MARGINS[name], True
    else:
        margin, bounded = {"tail": 0.0025, "junk": 0.001, "first_choice_weighted": 0.03}[name], False
    return Statistic(Totals(own, other, (own, other)), margin, bounded)


def passes(candidate: Arm, stock: Arm, replies: int, most_tokens: int) -> Iterator[tuple[int, Outcome]]:
    """Looks after every pass of so many replies on each side: (tokens an arm, verdict)."""
    while candidate.tokens < most_tokens:
        candidate.go_on(replies)
        stock.go_on(replies)
        yield candidate.tokens, verdict(candidate, stock)
