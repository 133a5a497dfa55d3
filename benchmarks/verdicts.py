"""How often whole comparisons end in which verdict: embedded engines, virtual clock, plan strict.

    python benchmarks/verdicts.py [--runs 200] [--workers 2]

Three cases, each run with its own seeds: the stock engine against itself; a lossless speculative engine against
stock; and, a quarter as often, the stock engine at temperature 0.9. Each comparison drives profile team in three
passes of both endpoints, scores every reply, and judges once. Prints outcomes, scored tokens and times.
"""

import argparse
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

REQUESTS, PASSES = 60, 3
CASES = {
    "stock against itself": ({}, {}),
    "lossless speculation": ({"speculative": 4}, {}),
    "temperature 0.9": ({}, {"temperature": 0.9}),
}


def compared(case: str, seed: int) -> tuple[str, int, float]:
    """(outcome, scored candidate tokens, seconds) of one comparison."""
    from gates import report
    from loadgen.cli import simulated
    from loadgen.compare import Load
    from loadgen.profile import load, overridden
    from loadgen.record import Run
    from servers.sim.settings import Settings

    candidate, body = CASES[case]
    team = overridden(load("team"), {"requests": REQUESTS if case != "temperature 0.9" else 140})
    team = team.model_copy(update={"prompts": team.prompts.model_copy(update={"max_words": 40})})
    engines = {
        "stock": Settings(seed=2 * seed, kv_cache_tokens=8192),
        "candidate": Settings(seed=2 * seed + 1, kv_cache_tokens=8192, **candidate),
    }
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        simulated.compare(engines, Load((team,), PASSES, seed), out, {"extra_body": body or {}})
        verdict = report.judged([Run.open(out)], "strict").verdict
        assert verdict is not None
        tokens = sum(len(rows) for label, _, _, rows in Run.open(out).scores() if label == "candidate")
    return verdict.outcome, tokens, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="comparisons of each lossless case")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers) as pool:
        for case in CASES:
            runs = options.runs if case != "temperature 0.9" else max(1, options.runs // 4)
            found = list(pool.map(compared, [case] * runs, range(runs)))
            outcomes = Counter(outcome for outcome, _, _ in found)
            tokens = [count for _, count, _ in found]
            print(
                f"{case:<22} {runs:>4} runs   "
                + "   ".join(f"{name} {outcomes[name]}" for name in ("different", "undecided", "equivalent"))
                + f"   scored tokens {min(tokens):,} … {max(tokens):,}   {median(s for _, _, s in found):.1f} s a run",
                flush=True,
            )


if __name__ == "__main__":
    main()
