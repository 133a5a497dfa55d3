"""What a whole comparison says of each planted fault: embedded engines, virtual clock, plan strict.

    python benchmarks/faults.py [--fault NAME …] [--seeds 1] [--tokens 60000] [--workers 2]

Stock is `sim`, the candidate `sim-spec` with the fault. Each comparison drives profile team in three passes.
Prints the outcome, the scored tokens, the diagnosis, and the checks that say different.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from loadgen.cli.planted import compared
from servers.sim.faults import NAMES


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
        for (fault, seed), one in zip(todo, found, strict=True):
            named, off = one.diagnosis or "", ", ".join(one.checks)
            print(f"{fault or 'none':<18}{seed:>4}  {one.outcome:<11}{one.tokens:>9,}  {named:<40}  {off}", flush=True)


if __name__ == "__main__":
    main()
