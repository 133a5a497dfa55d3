"""How long a verdict takes, reading included.

    python benchmarks/judging.py [--tokens 1000000]

Makes a comparison of so many scored tokens at k = 20 (half of them each server's), judges it in a fresh process and
prints the seconds and the memory at most. Linux only.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def judge(run: Path) -> None:
    """Judges it in this process, from the imports on, and prints what that took."""
    began = time.perf_counter()
    from gates import plan, reading, verdict
    from loadgen.record import Run

    found = verdict.judge(reading.load(Run.open(run)), plan.load("strict"))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{found.outcome}: {time.perf_counter() - began:.2f} s, {used.ru_utime + used.ru_stime:.2f} s of CPU, "
        f"{used.ru_maxrss / 1024:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--judge", type=Path, metavar="RUN", help="judge this run in this process, and no more")
    given = parser.parse_args()
    if given.judge is not None:
        return judge(given.judge)
    from factories import FAST, SLOW, Shape, comparison

    with tempfile.TemporaryDirectory() as folder:
        # Two servers, two profiles, three passes.
        shape = Shape(requests=max(4, given.tokens // (2 * 2 * 3 * 300)), mean_tokens=299)
        run = comparison(Path(folder) / "run", np.random.default_rng(1), SLOW, FAST, shape)
        tokens = sum(len(rows) for *_, rows in run.scores())
        print(f"{tokens:,} scored tokens", flush=True)
        began = time.perf_counter()
        subprocess.run([sys.executable, __file__, "--judge", str(run.path)], cwd=ROOT, check=True)
        print(f"{time.perf_counter() - began:.2f} s with the start of Python")


if __name__ == "__main__":
    main()
