"""Does a long run keep its memory? `loadgate run` with many lanes for minutes, watched from outside.

    python benchmarks/soak.py [--lanes 1000] [--minutes 20] [--gap-ms 100] [--tokens 100]

Prints the client's resident memory and open files minute by minute, and its growth after the first minute. Linux only.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from truths import Truth, truth_server
from watched import rss_mb

EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    rss_mb: float
    files: int


def main() -> int:
    given = _arguments()
    reply_s = given.gap_ms / 1e3 * given.tokens
    replies = max(1, round(given.minutes * 60 / reply_s))
    with tempfile.TemporaryDirectory() as scratch, truth_server(given.gap_ms, given.gap_ms, 250, core=0) as truth:
        words = [sys.executable, "-m", "loadgen", "run", truth.url, "--dialect", "vllm", "--out", f"{scratch}/run"]
        words += ["--lanes", str(given.lanes), "--requests", str(given.lanes * replies)]
        words += ["--max-tokens", str(given.tokens), "--profile", _profile(Path(scratch)), "--passes", "1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
            driving = list(_watched(client, truth, given.lanes))
            began = time.monotonic()
            summary = client.communicate()[0]
            after_s = time.monotonic() - began
    print(summary)
    if not driving:
        print("the client never had its connections open, or ended at once")
        return client.returncode or 1
    return _told(driving, after_s, client.returncode)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--lanes", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--gap-ms", type=float, default=100)
    parser.add_argument("--tokens", type=int, default=100, help="of a reply")
    return parser.parse_args()


def _profile(folder: Path) -> str:
    """No warm-up: the first minute is one."""
    file = folder / "soak.toml"
    shape = 'endpoint = "completions"\nlanes = 1\nrequests = 1\nmax_tokens = 1\n'
    file.write_text(shape + '[prompts]\nsource = "builtin"\n[warmup]\nrequests = 0\n')
    return str(file)


def _watched(client: "subprocess.Popen[str]", truth: Truth, lanes: int) -> Iterator[Sample]:
    """While the lanes' connections are open; what the server keeps is drained, or it would be the one that grows."""
    began, seen = time.monotonic(), False
    while client.poll() is None:
        time.sleep(EVERY_S)
        with contextlib.suppress(OSError):
            files = len(list(Path(f"/proc/{client.pid}/fd").iterdir()))
            if files >= lanes:
                began, seen = (began, True) if seen else (time.monotonic(), True)
                yield Sample(time.monotonic() - began, rss_mb(client.pid), files)
            elif seen:
                return
        urllib.request.urlopen(truth.url + "/sent", timeout=60).read()


def _told(samples: list[Sample], after_s: float, status: int) -> int:
    minutes = [next(one for one in samples if one.at_s >= start) for start in range(0, int(samples[-1].at_s), 60)]
    print("minute   resident MB   open files")
    for number, sample in enumerate(minutes):
        print(f"{number:>6}{sample.rss_mb:>14.1f}{sample.files:>13}")
    settled = [sample for sample in samples if sample.at_s >= 60] or samples[-1:]
    growth = max(sample.rss_mb for sample in settled) / settled[0].rss_mb - 1
    files = {sample.files for sample in settled}
    print(
        f"growth after the first minute: {100 * growth:.1f} % (largest sample); open files {min(files)} to {max(files)}"
    )
    print(f"the summary took {after_s:.0f} s; exit code {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
