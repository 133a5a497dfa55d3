"""The selftest's comparisons against the production verdict, over the same tokens."""

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from gates import digests, plan, strata, tokens, verdict
from gates.evidence import Arm, Evidence, Pass, Reply, Role
from gates.scored import Scored
from gates.selftest import comparison, faults
from gates.selftest.comparison import LOADS, PROFILE, REPLY, Comparison, Rules, Served, Server
from gates.selftest.tables import EOS, K
from gates.selftest.world import World, where, whole
from loadgen.record import SCORE_DTYPE

STRICT = plan.load("strict")
ALIKE = STRICT.without({"failures", "pit"}).model_copy(update={"strata": ["profile", "position", "chunk_index"]})
"""Without what no token says, without what is randomised, and without in_flight: the replies below do not overlap."""


def pass_of(world: World, number: int, cells: Any) -> Pass:
    """A pass as read from a run: the same tokens, scored by the same laws."""
    n = cells.size
    context, cell = np.divmod(cells.ravel(), K + 1)
    columns = np.tile(np.arange(K), (n, 1))
    rows = np.zeros(n, SCORE_DTYPE)
    rows["request"] = np.repeat(np.arange(len(cells)) + 1 + 100 * number, REPLY)
    rows["position"] = np.tile(np.arange(REPLY), len(cells))
    rows["ids"][:, :K] = np.where(columns == world.model.ends[context][:, None], EOS, columns)
    rows["logprobs"][:, :K] = np.log(world.model.p[context, :K])
    listed = rows["ids"][np.arange(n), np.minimum(cell, K - 1)]
    rows["token_id"] = np.where(cell < K, listed, EOS + 1)
    replies = [
        Reply(
            request=int(request),
            prompt_id=str(request),
            prompt=None,
            lane=0,
            sent_ns=1000 * (1 + place + 1000 * number),
            end_ns=1000 * (1 + place + 1000 * number) + 500,
            chunk_ns=np.arange(REPLY) + 1000 * (1 + place + 1000 * number) + 1,
            chunk_tokens=np.ones(REPLY, np.int64),
            tokens=REPLY,
            failure=None,
        )
        for place, request in enumerate(rows["request"][::REPLY])
    ]
    return Pass(PROFILE, number, replies, Scored(rows, np.repeat(np.arange(len(cells)), REPLY), {}), {}, {})


def recorded(serve: Served, kept: list[Any]) -> Served:
    def again() -> Any:
        kept.append(serve())
        return kept[-1]

    return again


def arm(world: World, role: Role, passes: list[Any]) -> Arm:
    read = [pass_of(world, number, cells) for number, cells in enumerate(passes)]
    return Arm(role, role, read, [], frozenset({EOS}))


def both(world: World, used: plan.Plan, serve: Served, looks: list[int]) -> list[tuple[comparison.Seen, Any]]:
    """At each of these looks: what the selftest says, and what gates.verdict does."""
    sent: tuple[list[Any], list[Any]] = ([], [])
    candidate = Server(world.pool, recorded(serve, sent[0]), "candidate", world.rng)
    stock = Server(world.pool, recorded(whole(world.draw(world.model.p)), sent[1]), "stock", world.rng)
    found = []
    compared = Comparison(candidate, stock, Rules(used))
    for number, seen in enumerate(compared.passes(max(looks) * len(LOADS) * REPLY), 1):
        if number in looks:
            evidence = Evidence(
                stock=arm(world, "stock", sent[1]),
                candidate=arm(world, "candidate", sent[0]),
                profiles=[PROFILE],
                open_loop=frozenset(),
                runs=[],
                ended=True,
                whole=True,
                paired=True,
                warnings=[],
            )
            assert Rules(used).suspected(compared.evidence).levels == Rules(used).suspected(evidence).levels
            found.append((seen, verdict.judge(evidence, used)))
    return found


def outcome_of(judged: Any) -> str:
    """By the checks that the selftest counts, where nothing is different."""
    if judged.outcome == "different":
        return "different"
    asked = [one.outcome for one in judged.findings if one.check in comparison.REQUIRED]
    return "equivalent" if set(asked) <= {"equivalent", "passed"} else "undecided"


@pytest.mark.parametrize(
    ("fault", "outcomes"),
    [
        (None, {"undecided", "equivalent"}),
        ("temperature-0.95", {"undecided", "different"}),
        ("top-p-0.98", {"undecided", "different"}),
        ("temperature-0.98", {"undecided", "different"}),
        ("greedy-0.20", {"undecided", "different"}),
        ("late", {"undecided", "different"}),
    ],
)
def test_comparisons_are_decided_as_runs_are(
    fault: str | None, outcomes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome and diagnosis at nine looks: those of the production verdict, which reads every token anew."""
    monkeypatch.setattr(digests, "of", lambda runs: {})  # there are no files
    world = World.made(11)
    there, elsewhere = (world.draw(law) for law in (world.faulty(fault or "temperature-0.95"), world.model.p))
    late = where(np.arange(REPLY) >= faults.LATE, there, elsewhere)
    serve = late if fault == "late" else whole(elsewhere if fault is None else there)
    seen = set()
    for ours, judged in both(world, ALIKE, serve, [1, 2, 3, 4, 6, 9, 14, 25, 40]):
        assert ours.outcome == outcome_of(judged)
        if judged.outcome == "different":
            says = None if ours.likeliest is None else f"looks like {ours.likeliest.says}"
            assert says == judged.diagnosis
        seen.add(ours.outcome)
    assert seen == outcomes


def test_levels_are_those_of_the_verdict() -> None:
    """Of every check, at the third look; and the strata's levels are where gates.strata has them."""
    world, rules = World.made(1), Rules(STRICT)
    one = pass_of(world, 0, whole(world.draw(world.model.p))())
    evidence = Evidence(
        stock=Arm("stock", "stock", [], []),
        candidate=Arm("candidate", "candidate", [dataclasses.replace(one, pass_no=number) for number in range(3)], []),
        profiles=[PROFILE],
        open_loop=frozenset(),
        runs=[],
        ended=True,
        whole=True,
        paired=True,
        warnings=[],
    )
    suspected = rules.suspected(dataclasses.replace(evidence, candidate=Arm("candidate", "candidate", [], [])))
    for check in comparison.QUESTIONS:
        terms = verdict._terms(rules._modules, check, True, evidence, STRICT, suspected)
        assert rules.levels(check) == (terms.pooled, terms.profile)
        assert rules.p_value(3) == terms.p_value
    for stratum, levels in strata.levels(one).items():
        if stratum != "in_flight":  # its stamps here are those of no engine
            assert levels.reshape(len(LOADS), REPLY).tolist() == comparison._levels(stratum).tolist()
    binned = [int(np.searchsorted(strata._EDGES["in_flight"], load, side="right")) for load in LOADS]
    assert comparison.LEVELS_OF_LOADS.tolist() == binned


def test_tokens_asked_for_are_those_of_the_run() -> None:
    """What a stratum is asked for: residuals of every token, and the levels they stand in."""
    world, sent = World.made(2), []
    server = Server(world.pool, recorded(whole(world.draw(world.model.p)), sent), "candidate", world.rng)
    server.go_on()
    server.go_on()
    read = tokens.of(arm(world, "candidate", sent))
    for name in tokens.STATISTICS:
        ours, theirs = server.known.residuals[name][PROFILE], read.residuals[name][PROFILE]
        assert ours.d == pytest.approx(theirs.d, abs=1e-4) and ours.v == pytest.approx(theirs.v, abs=1e-4)
        assert ours.reply.tolist() == theirs.reply.tolist()
    assert server.known.levels["position"][PROFILE].tolist() == read.levels["position"][PROFILE].tolist()
    assert server.known.of_strata["position"].log_ratios == pytest.approx(
        read.of_strata["position"].log_ratios, abs=0.05
    )
    assert server.known.evidence.log_sup == pytest.approx(read.evidence.log_sup, abs=0.01)
    assert server.in_tail()[0] == int((read.residuals["tail"][PROFILE].d > 0).sum())


def test_a_comparison_leaves_nothing_behind() -> None:
    """Thousands follow each other in one process: what tells a server's residuals must not keep the server alive."""
    world = World.made(3)
    law = world.draw(world.model.p)
    compared = world.compared(whole(law), law)
    for _ in compared.passes(2 * len(LOADS) * REPLY):
        assert len(compared.candidate.known.residuals["likelihood"][PROFILE]) == compared.candidate.tokens
    arms = [weakref.ref(server.arm) for server in (compared.candidate, compared.stock)]
    del compared
    gc.collect()
    assert [arm() for arm in arms] == [None, None]
