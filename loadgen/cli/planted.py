"""Faults planted in the embedded engine, each found or not by a whole comparison under the virtual clock."""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gates.finding import Outcome
    from loadgen.record import Run

FEW = ("top-p-0.95", "greedy-0.20", "typical", "smaller", "under-load", "late", "dropped", "usage")
"""Those that a comparison of TOKENS tokens finds, of every kind."""

TOKENS = 20_000
PASS_TOKENS, MEAN_REPLY = 10_000, 40


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison. tokens: the candidate's that were scored; checks: those that say different."""

    outcome: "Outcome"
    tokens: int
    diagnosis: str | None
    checks: list[str]
    warnings: list[str]


def compared(fault: str | None, seed: int, tokens: int) -> Compared:
    """Of a speculative engine with this fault (None: lossless) with stock, profile team, plan strict, until it is
    decided or after about so many tokens of each."""
    from gates import report
    from loadgen.cli import judging, simulated
    from loadgen.compare import Load
    from loadgen.profile import load, overridden
    from loadgen.record import Run
    from servers.sim.settings import Settings

    passes = passes_of(tokens)
    team = overridden(load("team"), {"requests": max(16, tokens // (MEAN_REPLY * passes))})
    team = team.model_copy(update={"prompts": team.prompts.model_copy(update={"max_words": 40})})
    asked = {"seed": 2 * seed + 1, "kv_cache_tokens": 8192, "speculative": 4, "fault": fault}
    engines = {"stock": Settings(seed=2 * seed, kv_cache_tokens=8192), "candidate": Settings.model_validate(asked)}
    if fault == "unverified-0.10":  # a tenth of the drafts taken as they are is beyond every other statistic
        engines["draft"] = Settings(serves="draft", kv_cache_tokens=8192)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        probes = judging.probes_of("strict", ())
        decided = judging.decided_by("strict", ())
        simulated.compare(engines, Load((team,), passes, seed), out, None, probes, decided)
        run = Run.open(out)
        verdict = report.judged([run], "strict").verdict
        assert verdict is not None
        return summed_up(run, verdict.as_json())


def passes_of(tokens: int) -> int:
    return max(1, round(tokens / PASS_TOKENS))


def summed_up(run: "Run", verdict: dict[str, Any]) -> Compared:
    """verdict: as verdict.json holds it."""
    found = [one for one in verdict["findings"] if one["outcome"] == "different"]
    off = {one["check"] + (f" ({one['stratum']})" if one["stratum"] else "") for one in found}
    scored = sum(len(rows) for label, profile, _, rows in run.scores() if (label, profile) == ("candidate", "team"))
    return Compared(verdict["outcome"], scored, verdict["diagnosis"], sorted(off), verdict["warnings"])


def spread(
    faults: Sequence[str | None], seed: int, tokens: int, processes: int
) -> Iterator[tuple[str | None, Compared]]:
    """Of each fault, in order, as they are done."""
    with ProcessPoolExecutor(processes) as executor:
        yield from zip(faults, executor.map(partial(compared, seed=seed, tokens=tokens), faults), strict=True)
