"""How exact and how dear a load client's clock is: ours and its peers against one server that knows the truth.

    python benchmarks/clients.py [--lanes 64 256 1000] [--start paced|burst] [--peers ours vllm …] [--no-costs]

The server runs on core 0, each client with all its processes on core 1 (where there are two, and taskset). All errors
are the client's figures minus the server's own stamps. A peer is measured where an environment variable names the
interpreter that it is installed for (LOADGATE_PEER_VLLM=/venv/bin/python, …GUIDELLM, …AIPERF, …SGLANG); peers make
their prompts with a tokenizer: --tokenizer DIR, for instance the `target` that servers/tiny.py makes. Linux only.
"""

import argparse
import dataclasses
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import peers
import tables
from figures import Costs, Errors, costs, errors
from peers import Load
from truths import Truth, truth_server
from watched import Spent, pinned, run

SERVER_CORE, CLIENT_CORE = 0, 1
LIMIT_S = 300.0
DISTURBED = 0.1  # of a core taken by other processes: the run is repeated
HELP_RUNS = 5

Size = tuple[int, int, int]  # lanes, requests a lane, tokens a reply


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    name: str
    python: str
    version: str


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """One client's run, as its clock told it and as the machine saw it."""

    client: str
    load: Load
    errors: Errors
    spent: Spent
    startup_s: float  # from the command's start to the first request at the server
    others: float  # of a core, mean over the run: what neither client nor server nor this program took
    costs: Costs | None = None  # measured at the most lanes alone


class Unmeasured(Exception):
    """The client broke, left no result, or reports requests that the server never saw."""


def main() -> None:
    options = parsed()
    clients = installed(options.peers, options.tokenizer)
    seen: list[Seen] = []
    with truth_server(options.first_ms, options.gap_ms, options.chunk_bytes, SERVER_CORE) as truth:
        try:
            for client in clients:
                seen.extend(measured(client, truth, options))  # an interruption leaves what was measured before it
        except KeyboardInterrupt:
            say("interrupted: what was measured until now")
    help_s = helped() if any(client.name == "ours" for client in clients) else None
    print(tables.document(seen, clients, machine(), options, help_s))
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in seen], default=str, indent=1))


def measured(client: Client, truth: Truth, options: argparse.Namespace) -> Iterator[Seen]:
    """One row for each number of lanes; a client that could not be measured is said, and has none."""
    for lanes in options.lanes:
        try:
            row = quietest(client, truth, (lanes, options.requests_per_lane, options.tokens), options)
            if options.costs and lanes == max(options.lanes):
                row = dataclasses.replace(row, costs=cost(client, truth, lanes, options))
        except Unmeasured as error:
            say(f"{client.name} at {lanes} lanes: {error}")
        else:
            say(tables.line(row))
            yield row


def parsed() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="+", default=[64, 256, 1000])
    parser.add_argument("--start", choices=("paced", "burst"), default="paced", help="lanes 1 ms apart, or all at once")
    parser.add_argument("--peers", nargs="+", default=["all"], choices=("all", *peers.names()))
    parser.add_argument("--tokens", type=int, default=100, help="chunks a reply")
    parser.add_argument("--requests-per-lane", type=int, default=3)
    parser.add_argument("--first-ms", type=float, default=20, help="the server's time to the first chunk")
    parser.add_argument("--gap-ms", type=float, default=20, help="the server's time between chunks")
    parser.add_argument("--chunk-bytes", type=int, default=250)
    parser.add_argument("--tokenizer", type=Path, metavar="DIR")
    parser.add_argument("--tries", type=int, default=3, help="runs at most until one is undisturbed")
    parser.add_argument("--no-costs", dest="costs", action="store_false", help="leave out the three runs for the costs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures of all runs")
    return parser.parse_args()


def installed(names: list[str], tokenizer: Path | None) -> list[Client]:
    """The clients asked for that are there; what is left out is said."""
    found = []
    for name in peers.names() if "all" in names else names:
        peer = peers.load_peer(name)
        python = peers.interpreter(peer) or (sys.executable if name == "ours" else None)
        if python is None:
            say(f"{name} is left out: {peer.PYTHON} names no interpreter that it is installed for.")
        elif tokenizer is None and name != "ours":
            say(f"{name} is left out: it makes its prompts with a tokenizer; give --tokenizer DIR.")
        elif (version := version_of(peer, python)) is None:
            say(f"{name} is left out: {python} has no {' or '.join(peer.DISTRIBUTIONS)}.")
        else:
            found.append(Client(name, python, version))
    return found


def version_of(peer: peers.Peer, python: str) -> str | None:
    for distribution in peer.DISTRIBUTIONS:
        words = [python, "-c", f"from importlib.metadata import version; print(version({distribution!r}))"]
        asked = subprocess.run(words, capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            return asked.stdout.strip()
    return None


def quietest(client: Client, truth: Truth, size: Size, options: argparse.Namespace) -> Seen:
    """The first run that nothing disturbed, else the least disturbed one."""
    tried: list[Seen] = []
    while len(tried) < options.tries:
        tried.append(once(client, truth, size, options))
        if tried[-1].others < DISTURBED:
            break
    return min(tried, key=lambda row: row.others)


def cost(client: Client, truth: Truth, lanes: int, options: argparse.Namespace) -> Costs:
    few, longer, more = (
        (lanes * each, tokens, quietest(client, truth, (lanes, each, tokens), options).spent.cpu_s)
        for each, tokens in ((1, 10), (1, 150), (10, 10))
    )
    return costs(few, longer, more)


def once(client: Client, truth: Truth, size: Size, options: argparse.Namespace) -> Seen:
    lanes, each, tokens = size
    peer = peers.load_peer(client.name)
    with tempfile.TemporaryDirectory() as folder:
        load = Load(
            url=truth.url,
            lanes=lanes,
            requests_per_lane=each,
            tokens=tokens,
            paced=options.start == "paced",
            tokenizer=options.tokenizer,
            folder=Path(folder),
        )
        command = peer.command(client.python, load)
        truth.sent()  # forgets what a broken run left
        server_before_s, own_before_s = truth.load()["cpu_s"], time.process_time()
        spent = watched(command, load)
        server_s, own_s = truth.load()["cpu_s"] - server_before_s, time.process_time() - own_before_s
        sent = truth.sent()
        try:
            held = errors(peer.read(load), sent)
        except (OSError, ValueError, LookupError) as error:
            raise Unmeasured(f"no result that can be read ({type(error).__name__}: {error})") from error
    if held.replies < load.requests:
        say(f"{client.name} at {lanes} lanes: {held.replies} of {load.requests} requests succeeded")
    others = max(0.0, spent.machine_s - spent.cpu_s - server_s - own_s) / spent.wall_s
    return Seen(client.name, load, held, spent, (sent[0].received_ns - spent.began_ns) / 1e9, others)


def watched(command: peers.Command, load: Load) -> Spent:
    log = load.folder / "output.txt"
    try:
        spent = run([*pinned(CLIENT_CORE), *command.words], command.environment, log, LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise Unmeasured(f"not done within {error.timeout:g} s") from error
    if spent.status != 0:
        raise Unmeasured(f"exit code {spent.status}: …{log.read_text(errors='replace')[-400:]}")
    return spent


def helped() -> float:
    """Seconds of `loadgate --help`, the median of several."""
    words, taken = [sys.executable, "-m", "loadgen", "--help"], []
    for _ in range(HELP_RUNS):
        began = time.perf_counter()
        subprocess.run([*pinned(CLIENT_CORE), *words], cwd=Path(__file__).parents[1], check=True, capture_output=True)
        taken.append(time.perf_counter() - began)
    return median(taken)


def machine() -> str:
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{len(model)} cores of {model[0] if model else platform.machine()}, {system}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
