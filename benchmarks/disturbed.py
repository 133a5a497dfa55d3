"""How exact our stamps stay while the client is kept from its work.

    python benchmarks/disturbed.py [--lanes 256]

The same run four times, against the server that knows the truth: with nothing beside it, with a thread in the client's
process that never rests, with a process on the client's core that never rests, and with both. Linux only.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import peers
from figures import Errors, errors
from peers import Load
from truths import Truth, truth_server
from watched import pinned, run

SERVER_CORE, CLIENT_CORE = 0, 1
LIMIT_S = 120.0
SPIN = "while True: pass"
SPINNING_CLIENT = f"""
import runpy, sys, threading
def spin():
    {SPIN}
threading.Thread(target=spin, daemon=True).start()
sys.argv = ["loadgen", *sys.argv[1:]]
runpy.run_module("loadgen", run_name="__main__")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--lanes", type=int, default=256)
    given = parser.parse_args()
    print(f"{given.lanes} lanes   beside the client    chunk error p50 / p99 / max       TTFT error mean / p99")
    with truth_server(20, 20, 250, SERVER_CORE) as truth:
        for thread in (False, True):
            for process in (False, True):
                found = measured(truth, given.lanes, thread, process)
                beside = " and ".join(["a thread"] * thread + ["a process"] * process) or "nothing"
                chunk = f"{found.chunk_p50_ms:.3f} / {found.chunk_p99_ms:.3f} / {found.chunk_max_ms:.2f} ms"
                print(f"{beside:>31}{chunk:>30}{found.ttft_mean_ms:>17.3f} / {found.ttft_p99_ms:.3f} ms", flush=True)


def measured(truth: Truth, lanes: int, thread: bool, process: bool) -> Errors:
    peer = peers.load_peer("ours")
    with tempfile.TemporaryDirectory() as folder:
        load = Load(truth.url, lanes, 3, 100, paced=True, tokenizer=None, folder=Path(folder))
        command = peer.command(sys.executable, load)
        words = command.words
        if thread:
            after = words.index("loadgen") + 1
            words = [sys.executable, "-c", SPINNING_CLIENT, *words[after:]]
        truth.sent()  # forgets what came before
        with spinning() if process else contextlib.nullcontext():
            spent = run([*pinned(CLIENT_CORE), *words], command.environment, load.folder / "output.txt", LIMIT_S)
        if spent.status != 0:
            sys.exit((load.folder / "output.txt").read_text(errors="replace")[-1000:])
        return errors(peer.read(load), truth.sent())


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    with subprocess.Popen([*pinned(CLIENT_CORE), sys.executable, "-c", SPIN]) as process:
        try:
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    main()
