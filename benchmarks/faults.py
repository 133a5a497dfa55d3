"""What a whole comparison says of each planted fault: embedded engines, virtual clock, plan strict.

    python benchmarks/faults.py [--fault NAME …] [--seeds 1] [--tokens 60000] [--workers 2]

Stock is `sim`, the candidate `sim-spec` with the fault. Each comparison drives profile team in three passes.
Prints the outcome, the scored tokens, the diagnosis, and the checks that say different.
"""

import argparse
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from servers.sim.faults import NAMES

PASSES, MEAN_REPLY = 3, 40


def compared(fault: str | None, seed: int, tokens: int) -> tuple[str, int, str, str]:
    """(outcome, scored candidate tokens, diagnosis, checks that say different) of one comparison."""
    from gates import report
    from loadgen.cli import simulated
    from loadgen.compare import Load
    from loadgen.profile import load, overridden
    from loadgen.record import Run
    from servers.sim.settings import Settings

    team = overridden(load("team"), {"requests": max(16, tokens // (MEAN_REPLY * PASSES))})
    team = team.model_copy(update={"prompts": team.prompts.model_copy(update={"max_words": 40})})
    engines = {
        "stock": Settings(seed=2 * seed, kv_cache_tokens=8192),
        "candidate": Settings(seed=2 * seed + 1, kv_cache_tokens=8192, speculative=4, fault=fault),  # type: ignore[arg-type]
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        simulated.compare(engines, Load((team,), PASSES, seed), out)
        verdict = report.judged([Run.open(out)], "strict").verdict
        assert verdict is not None
        scored = sum(len(rows) for label, _, _, rows in Run.open(out).scores() if label == "candidate")
    off = {
        f"{one.check}{f' ({one.stratum})' if one.stratum else ''}"
        for one in verdict.findings
        if one.outcome == "different"
    }
    return verdict.outcome, scored, verdict.diagnosis or "", ", ".join(sorted(off))


def cases(names: list[str], seeds: int) -> Iterator[tuple[str | None, int]]:
    for name in names:
        for seed in range(seeds):
            yield (None if name == "none" else name), seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--fault", nargs="+", default=["none", *NAMES], choices=["none", *NAMES])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=60_000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    todo = list(cases(given.fault, given.seeds))
    with ProcessPoolExecutor(given.workers) as pool:
        found = pool.map(compared, *zip(*todo, strict=True), [given.tokens] * len(todo))
        for (fault, seed), (outcome, tokens, diagnosis, off) in zip(todo, found, strict=True):
            print(f"{fault or 'none':<18}{seed:>4}  {outcome:<11}{tokens:>9,}  {diagnosis:<40}  {off}", flush=True)


if __name__ == "__main__":
    main()
