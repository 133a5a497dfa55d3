"""Whole comparisons with probes, under the virtual clock: where their records go, and what servers may fail to give."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from gates import report
from gates.finding import Finding, Verdict
from loadgen import virtual
from loadgen.cli import judging, scoring, simulated
from loadgen.cli.progress import Progress
from loadgen.cli.session import World
from loadgen.compare import Finished, Load
from loadgen.drive import Tally
from loadgen.endpoint import Endpoint, EndpointError
from loadgen.memory import MemoryTransport, Message
from loadgen.probe import Gathering, check_alive
from loadgen.probes import NAMES, logprobs, repeat_prefix
from loadgen.profile import Sampling, load, overridden
from loadgen.record import Failure, Record, Run
from loadgen.side import ReferenceDied
from loadgen.telemetry import Clock
from servers.sim import app as sim
from servers.sim.settings import Settings

ON_PROBES = {"repeat_prefix", "agreement", "fidelity", "honesty", "greedy"}
PLAN_PROBES = judging.probes_of("strict", ())


@pytest.fixture(scope="module", autouse=True)
def few_draws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeat_prefix, "PREFIXES", 12)
        patch.setattr(repeat_prefix, "DRAWS", 20)
        patch.setattr(logprobs, "ASKING", 12)
        patch.setattr(logprobs, "ONE_IN", 2)
        yield


def compared(
    out: Path, candidate: dict[str, Any] | None = None, requests: int = 16, temperature: float = 1.0
) -> tuple[Run, Verdict]:
    team = overridden(load("team"), {"requests": requests})
    short = team.prompts.model_copy(update={"max_words": 20})
    team = team.model_copy(update={"prompts": short, "sampling": Sampling(temperature=temperature)})
    engines = {
        "stock": Settings(seed=1, rows=512),
        "candidate": Settings.model_validate({"seed": 2, "rows": 512, **(candidate or {})}),
    }
    simulated.compare(engines, Load((team,), passes=1, seed=3), out, probes=PLAN_PROBES)
    return Run.open(out), judged(out)


def judged(out: Path) -> Verdict:
    verdict = report.judged([Run.open(out)], "strict").verdict
    assert verdict is not None
    return verdict


@pytest.fixture(scope="module")
def speculating(tmp_path_factory: pytest.TempPathFactory, few_draws: None) -> tuple[Run, Verdict]:
    return compared(tmp_path_factory.mktemp("probe") / "run", {"speculative": 4})


def of(verdict: Verdict, *checks: str) -> list[Finding]:
    return [one for one in verdict.findings if one.check in checks]


def test_a_plan_asks_for_every_probe() -> None:
    """strict needs all five, in the order of the records' names."""
    assert PLAN_PROBES == NAMES


def test_probes_are_records_of_their_own_phase(speculating: tuple[Run, Verdict]) -> None:
    """Both endpoints got the same number of each, after their timed passes."""
    run, _ = speculating
    found = Counter((r.endpoint, r.probe) for r in run.records() if r.phase == "probe")
    last_timed = max(r.end_ns or 0 for r in run.records() if r.phase == "timed")

    assert {probe: found["stock", probe] == found["candidate", probe] > 0 for probe in NAMES} == dict.fromkeys(
        NAMES, True
    )
    assert {r.probe for r in run.records() if r.phase != "probe"} == {None}
    assert min(r.sent_ns or 0 for r in run.records() if r.phase == "probe") >= last_timed


def test_both_endpoints_are_asked_the_same(speculating: tuple[Run, Verdict]) -> None:
    """The same prompts, to the token, and the same fields."""
    run, _ = speculating
    asked: dict[str, list[str]] = {"stock": [], "candidate": []}
    for r in run.records():
        if r.phase == "probe":
            asked[r.endpoint].append(repr((r.probe, r.prompt_id, r.prompt_token_ids, sorted(r.asked.items()))))

    assert sorted(asked["stock"]) == sorted(asked["candidate"])


def test_one_law_a_place_is_scored_and_everything_else_whole(speculating: tuple[Run, Verdict]) -> None:
    """Scores lie under the probe's name; of the many draws at a prefix only a few are scored."""
    run, _ = speculating
    scored = {
        (label, name): set(rows["request"].tolist()) for label, name, _, rows in run.scores() if name in set(NAMES)
    }
    for label in ("stock", "candidate"):
        for probe in NAMES:
            sent = {
                int(r.id[:16], 16)
                for r in run.records()
                if (r.phase, r.endpoint, r.probe) == ("probe", label, probe) and r.token_ids
            }
            assert scored[label, probe] <= sent
            assert (scored[label, probe] == sent) == (probe != "repeat_prefix")
        assert 0 < len(scored[label, "repeat_prefix"]) < 12 * 5


def test_every_check_of_a_probe_has_data_and_none_says_different(speculating: tuple[Run, Verdict]) -> None:
    """A lossless speculative engine, by the tree of its repeated replies."""
    _, verdict = speculating
    found = of(verdict, *ON_PROBES)

    assert {one.check for one in found if one.missing is None} == ON_PROBES
    assert "different" not in {one.outcome for one in found}


def without_probes(run: Run, out: Path) -> Path:
    """A copy of the run in which no probe was ever sent."""
    shutil.copytree(run.path, out)
    for name in NAMES:
        for file in (out / "scores").glob(f"*-{name}-0.npy"):
            file.unlink()
    for file in out.glob("records*.jsonl"):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(line for line in lines if orjson.loads(line).get("phase") != "probe"))
    return out


def test_probes_change_no_other_finding(speculating: tuple[Run, Verdict], tmp_path: Path) -> None:
    """Without their records the speeds, the latencies and all findings on timed passes are the same; those that rest
    on probes say that there are none."""
    run, verdict = speculating
    bare = without_probes(run, tmp_path / "bare")
    other = judged(bare)

    assert of(other, *ON_PROBES) != of(verdict, *ON_PROBES)
    assert all("no probe" in (one.missing or "") for one in of(other, *ON_PROBES))
    assert [one for one in other.findings if one.check not in ON_PROBES] == [
        one for one in verdict.findings if one.check not in ON_PROBES
    ]
    assert (other.speed, other.acceptance, other.warnings) == (verdict.speed, verdict.acceptance, verdict.warnings)
    assert report.judged([Run.open(bare)], "strict").summary == report.judged([run], "strict").summary


def test_what_was_not_scored_can_be_scored_later(speculating: tuple[Run, Verdict], tmp_path: Path) -> None:
    """`loadgate score` asks for what is missing, of the repeated draws the same few replies, and nothing else."""
    run, verdict = speculating
    again = tmp_path / "again"
    shutil.copytree(run.path, again)
    for name in NAMES:
        (again / "scores" / f"candidate-{name}-0.npy").unlink()
    (unscored,) = {one.missing for one in of(judged(again), "greedy")}

    async def main(clock: Clock) -> dict[str, int]:
        engine = sim.app(Settings(seed=9, rows=512), clock)
        world = World(
            clock, lambda _: MemoryTransport(engine, clock), lambda _: MemoryTransport(engine, clock), throttled=False
        )
        return await scoring.score_run(
            again, Endpoint(url="http://127.0.0.1:1", label="reference"), world, Progress(quiet=True)
        )

    done = virtual.run(main)
    for name in NAMES:
        before, after = (np.load(path / "scores" / f"candidate-{name}-0.npy") for path in (run.path, again))
        assert np.array_equal(
            np.sort(before, order=["request", "position"]), np.sort(after, order=["request", "position"])
        )

    assert unscored is not None and "is not scored: `loadgate score" in unscored
    assert set(done) == {f"candidate-{name}-0" for name in NAMES}
    assert judged(again).findings == verdict.findings


Rule = Callable[[str, dict[str, Any]], int | None]
"""(path, body, which it may change) → the status to refuse with; 0: the connection ends without an answer."""


class Altered:
    """An engine behind something that changes its requests, or its answers."""

    def __init__(self, engine: sim.Api, rule: Rule, hidden: re.Pattern[bytes] | None) -> None:
        self._engine, self._rule, self._hidden = engine, rule, hidden

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        body = orjson.loads(message["body"] or b"{}")
        status = self._rule(scope["path"], body)
        if status == 0:
            return
        if status is not None:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b'{"error": {"message": "not here"}}'})
            return
        given = [{**message, "body": orjson.dumps(body) if message["body"] else b""}]

        async def again() -> Message:
            return given.pop() if given else await receive()

        async def hiding(sent: Message) -> None:
            if self._hidden is not None and sent.get("body"):
                sent = {**sent, "body": self._hidden.sub(b"", sent["body"])}
            await send(sent)

        await self._engine(scope, again, hiding)


def altered(
    monkeypatch: pytest.MonkeyPatch, rule: Rule, hidden: re.Pattern[bytes] | None = None, which: int | None = 2
) -> None:
    """which: the engine by its seed (1 is stock, 2 the candidate); None: both."""
    plain = sim.app

    def app(settings: Settings, clock: Clock) -> Any:
        engine = plain(settings, clock)
        return Altered(engine, rule, hidden) if which in (None, settings.seed) else engine

    monkeypatch.setattr(sim, "app", app)


def no_rule(path: str, body: dict[str, Any]) -> None:
    return None


def no_ids(path: str, body: dict[str, Any]) -> None:
    """Of replies; a prompt is scored as ever."""
    if body.get("stream"):
        body.pop("return_token_ids", None)


def no_logprobs(path: str, body: dict[str, Any]) -> int | None:
    return 400 if body.get("logprobs") or body.get("prompt_logprobs") else None


def no_tokenizer(path: str, body: dict[str, Any]) -> int | None:
    return 404 if path == "/tokenize" else None


def fails_in_a_probe(path: str, body: dict[str, Any]) -> int | None:
    """No answer to one-token requests: those of repeat_prefix."""
    return 0 if body.get("max_tokens") == 1 and "prompt_logprobs" not in body else None


class DiesInAProbe:
    """From the tenth draw of repeat_prefix on there is no answer to anything."""

    def __init__(self) -> None:
        self.draws = 0

    def __call__(self, path: str, body: dict[str, Any]) -> int | None:
        self.draws += fails_in_a_probe(path, body) is not None
        return 0 if self.draws >= 10 else None


def missing(verdict: Verdict) -> dict[str, str | None]:
    return {one.check: one.missing for one in of(verdict, *ON_PROBES)}


def test_a_candidate_without_token_ids_is_undecided_by_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check on sampled probes says that no ids came."""
    altered(monkeypatch, no_ids)
    said = missing(compared(tmp_path / "run")[1])

    for check, probe in (("repeat_prefix", "repeat_prefix"), ("agreement", "repeat_audit"), ("greedy", "greedy")):
        assert said[check] == f"the probe {probe} brought no token ids from candidate"
    assert said["honesty"] == "the probe logprobs brought no token ids from candidate"


def test_without_any_token_ids_there_are_no_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be made of what was seen: no request, no stack trace, and each check names its probe."""
    altered(monkeypatch, no_ids, which=None)
    run, verdict = compared(tmp_path / "run")

    assert {r.probe for r in run.records() if r.phase == "probe"} == {"fixed_text"}
    assert missing(verdict)["repeat_prefix"] == (
        "no probe repeat_prefix of stock: `loadgate compare` sends it where the plan asks for it and a profile "
        "samples, unless --until-decided was DIFFERENT before"
    )


def test_a_greedy_profile_is_judged_by_no_draws(tmp_path: Path) -> None:
    """A server that errs only where it samples is not called different by a load that never does."""
    run, verdict = compared(tmp_path / "run", {"fault": "top-k-20"}, temperature=0.0)

    assert {r.probe for r in run.records() if r.phase == "probe"} == {"fixed_text", "greedy"}
    assert [one for one in verdict.findings if one.outcome == "different"] == []
    assert missing(verdict)["repeat_prefix"] == (
        "no probe repeat_prefix of stock: `loadgate compare` sends it where the plan asks for it and a profile "
        "samples, unless --until-decided was DIFFERENT before"
    )


PROMPT_IDS = re.compile(rb',?"prompt_token_ids":\[[^\]]*\]')


def test_replies_without_their_prompts_ids_are_not_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked by token ids, an engine that does not say them back can be probed no more than it can be judged: said."""
    altered(monkeypatch, no_rule, hidden=PROMPT_IDS, which=None)
    _, verdict = compared(tmp_path / "run")

    assert verdict.outcome == "undecided"
    assert all(said is not None for said in missing(verdict).values())


def test_without_a_tokenizer_there_are_no_fixed_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary replies are compared all the same."""
    altered(monkeypatch, no_tokenizer, which=None)
    run, verdict = compared(tmp_path / "run")

    assert "fixed_text" not in {r.probe for r in run.records()}
    assert [one.stratum for one in of(verdict, "fidelity") if one.missing is None] == ["ordinary replies"]


def test_a_candidate_that_refuses_log_probabilities_is_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refusals are failures of probes, which no timed pass has, and count as none."""
    altered(monkeypatch, no_logprobs)
    run, verdict = compared(tmp_path / "run")
    said = missing(verdict)

    assert {r.probe for r in run.records() if r.failure} == {"logprobs", "fixed_text"}
    assert said["honesty"] == "candidate reports no log-probabilities of its own"
    assert said["fidelity"] == "candidate reports no log-probabilities of its own"
    assert said["greedy"] is None and said["agreement"] is None
    assert [one.estimate.value for one in of(verdict, "failures") if one.estimate] == [0.0]


def test_a_probe_that_fails_leaves_its_check_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed draws are records; the run ends, and the other probes have their data."""
    altered(monkeypatch, fails_in_a_probe)
    run, verdict = compared(tmp_path / "run")
    said = missing(verdict)

    assert run.complete
    why = "the probe repeat_prefix brought no token ids from candidate: 240 of 240 requests failed, truncated"
    assert said["repeat_prefix"] == why
    assert said["greedy"] is None
    assert {r.probe for r in run.records() if r.failure} == {"repeat_prefix"}


def test_a_candidate_that_dies_in_a_probe_is_judged_by_its_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything asked of it afterwards is a failed record; the timed passes stand, with no failure among them."""
    altered(monkeypatch, DiesInAProbe())
    run, verdict = compared(tmp_path / "run")

    assert run.complete
    assert {r.probe for r in run.records() if r.failure and r.endpoint == "candidate"} == set(NAMES)
    assert all(said is not None for said in missing(verdict).values())
    assert all(one.missing is None for one in of(verdict, "likelihood", "failures"))
    assert [one.estimate.value for one in of(verdict, "failures") if one.estimate] == [0.0]


def test_a_reference_that_dies_in_a_probe_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, and what was measured and scored is kept."""
    altered(monkeypatch, DiesInAProbe(), which=1)
    with pytest.raises(ReferenceDied, match="stopped answering while it scored"):
        compared(tmp_path / "run")
    run = Run.open(tmp_path / "run")

    assert run.end is not None and run.end["reason"] == "failed"
    assert {name for _, name, _, rows in run.scores() if len(rows)} == {"team"}


@pytest.mark.parametrize("fault", ["same-seed", "replay"])
def test_replies_that_are_not_drawn_anew_are_found(fault: str, tmp_path: Path) -> None:
    """By the repeat audit of a speculative engine, at the level that plan strict leaves to it."""
    _, verdict = compared(tmp_path / "run", {"speculative": 4, "fault": fault})

    assert {one.outcome for one in of(verdict, "agreement")} == {"different"}


def test_a_model_that_errs_a_little_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen noise of KL .01 a token, by 1,536 draws."""
    monkeypatch.setattr(repeat_prefix, "PREFIXES", 24)
    monkeypatch.setattr(repeat_prefix, "DRAWS", 64)
    _, verdict = compared(tmp_path / "run", {"fault": "noise-0.01"}, requests=48)
    (found,) = of(verdict, "repeat_prefix")

    assert found.outcome == "different"
    assert found.estimate is not None and found.estimate.n == 1536


def merged(line: bytes) -> bytes:
    """The candidate's timed chunks two by two, as a client that is late finds them."""
    found = orjson.loads(line)
    if found.get("phase") != "timed" or found["endpoint"] != "candidate":
        return line
    counts = found["chunk_tokens"]
    found["chunk_tokens"] = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]
    for name in ("chunk_ns", "chunk_ambiguous"):
        found[name] = found[name][::2]
    return orjson.dumps(found) + b"\n"


def test_late_reads_do_not_make_a_server_one_that_speculates(tmp_path: Path) -> None:
    """One-token draws that were sent count as before where the timed chunks hold two tokens, but no counter drafts."""
    run, before = compared(tmp_path / "run")
    path = run.path / "records.jsonl"
    path.write_bytes(b"".join(merged(line) for line in path.read_bytes().splitlines(keepends=True)))
    (found,) = of(judged(run.path), "repeat_prefix")

    assert found.missing is None
    assert "(prefill only)" in found.says
    assert [found] == of(before, "repeat_prefix")


@pytest.mark.parametrize(("chunk", "said", "expected"), [(1, None, False), (4, None, True), (1, {"drafts": 9}, True)])
def test_what_shows_that_a_candidate_speculates(
    speculating: tuple[Run, Verdict], chunk: int, said: dict[str, Any] | None, expected: bool
) -> None:
    """Chunks of several tokens, or the engine's own figures: where few drafts are accepted, chunks hold one."""
    profile = load("team")
    gathering = Gathering([profile], "stock", seed=1)
    timed = [r for r in speculating[0].records() if r.phase == "timed"]
    for label in ("stock", "candidate"):
        records = [
            replace(r, chunk_tokens=[chunk] * 5, speculation=said if label == "candidate" else None)
            for r in timed
            if r.endpoint == label
        ]
        gathering.add(Finished(label, "team", 0, 4, records, Tally()), None)

    assert gathering.material is not None
    assert gathering.material.speculates == expected


def ended(at_ns: int, kind: Any = None) -> Record:
    return Record(
        id=f"{at_ns:032x}",
        endpoint="candidate",
        profile="team",
        pass_no=0,
        lane=0,
        phase="probe",
        probe="greedy",
        prompt_id="p",
        asked={},
        end_ns=at_ns,
        failure=None if kind is None else Failure(kind=kind, detail="connection refused"),
    )


def test_a_server_that_died_during_a_probe_is_no_lack_of_data() -> None:
    """The last request found no connection: the run breaks off. One that failed in another way, or was lost on the way
    while later ones came through, leaves its check without data and no more."""
    side: Any = SimpleNamespace(endpoint=Endpoint(url="http://127.0.0.1:1", label="candidate"))
    check_alive(side, "greedy", [])
    check_alive(side, "greedy", [ended(1), ended(3, "http_status"), ended(2, "connect")])
    with pytest.raises(EndpointError, match=r"candidate .* stopped answering during probe greedy: 2 of 3 requests"):
        check_alive(side, "greedy", [ended(3, "connect"), ended(1), ended(2, "connect")])
