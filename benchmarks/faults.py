"""What a whole comparison says of each planted fault: embedded engines, plan strict.

    python benchmarks/faults.py [--fault NAME …] [--seeds 1] [--tokens N] [--workers 2] [--http]

Stock is `sim`, the candidate `sim-spec` with the fault. Each comparison drives profile team, 10,000 tokens a pass,
until the verdict is in or --tokens are sent (as many as the fault needs, where that is left out), then the probes.
Prints the outcome, the scored tokens, the diagnosis, and the checks that say different; where none does, what the
verdict warns of. Without --http the engines' clock is simulated, and nobody waits.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from loadgen.cli.planted import MEAN_REPLY, Compared, compared, passes_of, summed_up
from loadgen.record import Run
from servers.sim.faults import NAMES

USUAL = 60_000
ENOUGH = {
    **dict.fromkeys(("temperature-0.98", "junk-0.001"), 300_000),
    **dict.fromkeys(("temperature-0.95", "temperature-1.05", "greedy-0.05", "short"), 150_000),
    **dict.fromkeys(("none", "greedy-0.01"), 100_000),
    # What the probes show, or every request.
    **dict.fromkeys(("noise-0.005", "noise-0.01", "noise-0.03", "same-seed", "replay", "dishonest"), 10_000),
    **dict.fromkeys(("usage", "bundled"), 10_000),
}
"""Tokens of the candidate that find it nearly always; USUAL for the others."""


def cases(names: list[str], seeds: int, tokens: int | None) -> Iterator[tuple[str | None, int, int]]:
    for name in names:
        for seed in range(seeds):
            yield (None if name == "none" else name), seed, tokens or ENOUGH.get(name, USUAL)


def over_http(fault: str | None, seed: int, tokens: int) -> Compared:
    """The same by the command, in real time: two server processes, sockets, files."""
    # Steps of a third of the usual time, so that a table takes an hour and not three.
    engine = "seed={},kv_cache_tokens=8192,step_ms=3,draft_ms=0.3,sequence_ms=0.03,prefill_token_ms=0.002"
    planted = f"recipe:sim-spec,{engine.format(2 * seed + 1)}" + (f",fault={fault}" if fault else "")
    passes = passes_of(tokens)
    size = ["--requests", str(max(16, tokens // (MEAN_REPLY * passes))), "--passes", str(passes), "--seed", str(seed)]
    # A tenth of the drafts taken as they are is beyond every other statistic.
    size += ["--oracle", f"recipe:sim,serves=draft,{engine.format(0)}"] if fault == "unverified-0.10" else []
    with tempfile.TemporaryDirectory() as folder:
        out, loadgate = Path(folder) / "run", str(Path(sys.executable).with_name("loadgate"))
        servers = [f"recipe:sim,{engine.format(2 * seed)}", planted]
        command = [loadgate, "compare", *servers, "--profile", "team", *size, "--until-decided", "--out", str(out)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if not (out / "verdict.json").exists():
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return summed_up(Run.open(out), json.loads((out / "verdict.json").read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--fault", nargs="+", default=["none", *NAMES], choices=["none", *NAMES])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--http", action="store_true")
    given = parser.parse_args()
    todo = list(cases(given.fault, given.seeds, given.tokens))
    with ProcessPoolExecutor(given.workers) as pool:
        found = pool.map(over_http if given.http else compared, *zip(*todo, strict=True))
        for (fault, seed, _), one in zip(todo, found, strict=True):
            named, off = one.diagnosis or "", ", ".join(one.checks) or " ".join(one.warnings)
            print(f"{fault or 'none':<18}{seed:>4}  {one.outcome:<11}{one.tokens:>9,}  {named:<40}  {off}", flush=True)


if __name__ == "__main__":
    main()
