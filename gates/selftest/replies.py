"""Checks of whole replies put to the test: pairs of replies to one prompt, and replies with log-probabilities."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gates import alternatives
from gates.checks import Checked, Terms, agreement, honesty
from gates.evidence import Arm, Evidence, Role
from gates.finding import Outcome
from gates.probes import Probed, key
from gates.scored import Ints, Rows
from gates.selftest import faults, population
from gates.selftest.population import Laws
from gates.selftest.rates import Found
from gates.selftest.tables import K
from gates.selftest.world import CONTEXTS
from loadgen.record import SCORE_DTYPE, Logprob, Probe, Record

PAIRS, LONGEST = 32, 128
"""The repeat audit's prompts, each answered twice, and the tokens of a reply."""

TOLD, OF_TOLD = 6, 300
"""Replies with log-probabilities of one probe pass, and the tokens of such a reply."""

MOST_TOLD = 36


@dataclass(frozen=True, slots=True)
class Model:
    """p: (CONTEXTS, tokens), by which stock samples and the reference scores; below: p summed up along its rows."""

    p: Laws
    below: Laws
    rng: np.random.Generator

    @staticmethod
    def made(seed: int) -> "Model":
        rng = np.random.default_rng(seed)
        p = population.laws(CONTEXTS, rng)
        return Model(p, np.cumsum(p, axis=1), rng)


@dataclass(slots=True)
class Kept:
    """One endpoint's probe as it comes: its records, and the reference's scores of them."""

    p: Laws
    label: Role
    kind: Probe
    records: list[Record] = dataclasses.field(default_factory=list)
    scores: dict[int, Rows] = dataclasses.field(default_factory=dict)

    def answer(self, prompt: int, contexts: Ints, ids: Ints, told: list[Logprob] | None = None) -> None:
        number = len(self.records)
        record = Record(
            id=f"{number + 1:016x}{0:016x}",
            endpoint=self.label,
            profile=self.kind,
            pass_no=0,
            lane=0,
            phase="probe",
            probe=self.kind,
            prompt_id=f"prompt-{prompt}",
            asked={} if told is None else {"logprobs": K},
            sent_ns=number,
            end_ns=number,
            token_ids=ids.tolist(),
            logprobs=told,
        )
        self.records.append(record)
        self.scores[key(record)] = _scored(self.p, contexts, ids, key(record))

    def first(self, replies: int) -> Probed:
        return Probed(tuple(self.records[:replies]), self.scores)


def _scored(p: Laws, contexts: Ints, ids: Ints, request: int) -> Rows:
    rows = np.zeros(len(ids), SCORE_DTYPE)
    rows["request"], rows["position"], rows["token_id"] = request, np.arange(len(ids)), ids
    rows["logprob"] = np.log(p[contexts, ids])
    # p's columns fall: the likeliest are the first.
    rows["ids"], rows["logprobs"] = np.arange(K), np.log(p[contexts, :K])
    return rows


def drawn(below: Laws, contexts: Ints, rng: np.random.Generator) -> Ints:
    """(n,) a token of each context, by inversion. below: each law summed up along its row."""
    return np.asarray((below[contexts] < rng.random((len(contexts), 1)) * below[contexts, -1:]).sum(axis=1), np.int64)


def audited(model: Model, label: Role, copied: bool, pairs: int) -> Kept:
    """Every prompt answered twice. copied: the second time by the same tokens, as a kept reply is, or one seed for
    all. Contexts are those of the first reply; where the second has left them its tokens are not looked at."""
    kept = Kept(model.p, label, "repeat_audit")
    for prompt in range(pairs):
        contexts = model.rng.integers(CONTEXTS, size=LONGEST)
        first = drawn(model.below, contexts, model.rng)
        second = first if copied else drawn(model.below, contexts, model.rng)
        kept.answer(prompt, contexts, first)
        kept.answer(prompt, contexts, second)
    return kept


def told(model: Model, label: Role, below: Laws, replies: int) -> Kept:
    """Replies by the law of these sums, beside which the log-probabilities of the model itself are reported."""
    kept = Kept(model.p, label, "logprobs")
    for prompt in range(replies):
        contexts = model.rng.integers(CONTEXTS, size=OF_TOLD)
        ids = drawn(below, contexts, model.rng)
        kept.answer(prompt, contexts, ids, _reported(np.log(model.p[contexts]), ids))
    return kept


def _reported(logp: Laws, ids: Ints) -> list[Logprob]:
    top = [[(token, None, value) for token, value in enumerate(row)] for row in logp[:, :K].tolist()]
    own = logp[np.arange(len(ids)), ids].tolist()
    return [
        Logprob(token_id=token, token=None, logprob=value, top=[*likeliest])
        for token, value, likeliest in zip(ids.tolist(), own, top, strict=True)
    ]


def evidence(candidate: Probed, stock: Probed, kind: Probe) -> Evidence:
    return Evidence(
        stock=Arm("stock", "stock", [], [], probes={("stock", kind): stock}),
        candidate=Arm("candidate", "candidate", [], [], probes={("candidate", kind): candidate}),
        profiles=[],
        open_loop=frozenset(),
        runs=[],
        ended=True,
        whole=True,
        paired=True,
        warnings=[],
    )


def outcome(candidate: Probed, stock: Probed, terms: Terms) -> Outcome:
    kind = candidate.records[0].probe
    checked: Checked
    if kind == "repeat_audit":
        checked = agreement.check(evidence(candidate, stock, kind), agreement.Settings(), terms)
    else:
        checked = honesty.check(evidence(candidate, stock, "logprobs"), honesty.Settings(), terms)
    return checked.findings[0].outcome


def until_different(candidate: Kept, stock: Kept, terms: Terms, step: int) -> int:
    """Tokens of the candidate until DIFFERENT, looking after every so many replies; −1 where it never is."""
    for replies in range(step, len(candidate.records) + 1, step):
        if outcome(candidate.first(replies), stock.first(replies), terms) == "different":
            return sum(len(record.token_ids or ()) for record in candidate.records[:replies])
    return -1


def copies(terms: Terms, seed: int, count: int) -> Found:
    """Until agreement finds that second replies are copies, prompt by prompt."""
    model = Model.made(8000 + seed)
    tokens = [
        until_different(audited(model, "candidate", True, PAIRS), audited(model, "stock", False, PAIRS), terms, 2)
        for _ in range(count)
    ]
    return Found(np.array(tokens), np.array(tokens) > 0)


def dishonest(terms: Terms, seed: int, count: int) -> Found:
    """Until honesty finds it, in tokens with log-probabilities."""
    model = Model.made(9000 + seed)
    below = np.cumsum(faults.heated(model.p, faults.COLD), axis=1)
    tokens, right = [], []
    for _ in range(count):
        candidate, stock = told(model, "candidate", below, MOST_TOLD), told(model, "stock", model.below, MOST_TOLD)
        tokens.append(until_different(candidate, stock, terms, 2))
        right.append(tokens[-1] > 0 and _named_rightly(candidate.first(tokens[-1] // OF_TOLD)))
    return Found(np.array(tokens), np.array(right))


def _named_rightly(probed: Probed) -> bool:
    says = honesty.reported(probed).likeliest
    families = {one.says: one.family for one in alternatives.ALTERNATIVES}
    return "dishonest" in faults.FAMILIES.get(families.get(says, ""), ())


LEVELS = (0.05, 0.01, 0.001)


def lossless(kind: Probe, terms: Terms, seed: int, count: int) -> list[int]:
    """Of so many whole probes of two equal servers, those called different at each of LEVELS."""
    model = Model.made(10_000 + seed)
    different = np.zeros(len(LEVELS), np.int64)
    for _ in range(count):
        candidate, stock = (_whole(model, label, kind) for label in _LABELS)
        for place, wrong in enumerate(_wrong(candidate, stock, terms)):
            different[place] += wrong
    return [int(one) for one in different]


_LABELS: tuple[Role, Role] = ("candidate", "stock")


def _whole(model: Model, label: Role, kind: Probe) -> Probed:
    if kind == "repeat_audit":
        return audited(model, label, False, PAIRS).first(2 * PAIRS)
    return told(model, label, model.below, TOLD).first(TOLD)


def _wrong(candidate: Probed, stock: Probed, terms: Terms) -> Iterator[bool]:
    """At each level; a smaller one is only asked for where the one before is passed."""
    wrong = True
    for level in LEVELS:
        wrong = wrong and outcome(candidate, stock, dataclasses.replace(terms, p_value=level)) == "different"
        yield wrong


def totals(parts: Sequence[list[int]]) -> dict[str, int]:
    """level → probes called different"""
    return {f"{level:g}": sum(part[place] for part in parts) for place, level in enumerate(LEVELS)}
