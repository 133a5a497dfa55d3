"""The client against a server that knows when it sent each chunk, with more and more lanes: how exact it stays."""

import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.client import Place
from loadgen.discovery import open_endpoint
from loadgen.drive import Alone, Driven, Part, ProgressDisplay
from loadgen.endpoint import Endpoint, EndpointError, Opened
from loadgen.held import Held
from loadgen.processes import same_packages
from loadgen.profile import Limits
from loadgen.prompts import Prompt
from loadgen.record import Record
from loadgen.request import Request
from loadgen.side import side_get
from loadgen.transport import SocketTransport

STEPS = (64, 128, 256, 512, 1000, 1500, 2000)
"""Lanes, each with 50 chunks a second."""

BOUND_MS = 1.0
_SERVER_BOUND_MS = 5.0
_FIRST_MS = _GAP_MS = 20
_CHUNKS = 75  # a reply
_REPLIES = 2  # a lane
_TRIES = 2  # a neighbour's burst must not stand for what the machine can do


@dataclass(frozen=True, slots=True)
class Step:
    """What one number of lanes gave."""

    lanes: int
    chunks_per_s: float
    chunk_error_p50_ms: float  # |our stamp − the server's of the sending|
    chunk_error_p99_ms: float
    ttft_error_p99_ms: float  # |our TTFT − the server's, from the request's arrival there|
    server_late_p99_ms: float | None  # of the server's own timers

    @property
    def holds(self) -> bool:
        return max(self.chunk_error_p99_ms, self.ttft_error_p99_ms) <= BOUND_MS

    @property
    def server_fell_behind(self) -> bool:
        """Then it sends what has piled up at once, and the fault may be its own."""
        return self.server_late_p99_ms is not None and self.server_late_p99_ms > _SERVER_BOUND_MS


async def steps(lanes: Sequence[int], shown: ProgressDisplay) -> AsyncIterator[Step]:
    """Up to the first step that does not hold, that one included. Raises NoRoom, EndpointError."""
    with _truth_server() as url:
        side = await open_endpoint(Endpoint(url=url, label="truth", dialect="vllm"), SocketTransport())
        try:
            for number in lanes:
                for _ in range(_TRIES):
                    step = await _step(side, number, shown)
                    if step.holds:
                        break
                yield step
                if not step.holds:
                    return
        finally:
            await side.close()


def most_held(found: Sequence[Step]) -> Held | None:
    """None where not even the first step held."""
    held = [step for step in found if step.holds]
    return Held(held[-1].lanes, held[-1].chunks_per_s) if held else None


async def _step(side: Opened, lanes: int, shown: ProgressDisplay) -> Step:
    driven = await Alone(time.monotonic_ns, lambda record: None).drive(side, _part(lanes), shown)
    await asyncio.sleep(0.1)  # what is still on its way to be closed is no part of the next step
    load, sent = await _page(side, "load"), await _page(side, "sent")
    chunk_errors, ttft_errors = _errors(driven.records, sent)
    if not ttft_errors:
        raise EndpointError("The built-in truth server answered nothing: is this machine out of processor time?")
    return Step(
        lanes=lanes,
        chunks_per_s=_chunks_per_s(driven, lanes),
        chunk_error_p50_ms=_quantile(chunk_errors, 0.5) / 1e6,
        chunk_error_p99_ms=_quantile(chunk_errors, 0.99) / 1e6,
        ttft_error_p99_ms=_quantile(ttft_errors, 0.99) / 1e6,
        server_late_p99_ms=load["late_p99_ms"],
    )


def _part(lanes: int) -> Part:
    """Lanes start a millisecond apart, as a profile's do."""
    asked = {"max_tokens": _CHUNKS}
    requests = [
        Request(f"{wave}-{lane}", Prompt(text="a"), "completions", asked, lane, None if wave else lane / 1e3)
        for wave in range(_REPLIES)
        for lane in range(lanes)
    ]
    return Part(requests, Place(endpoint="truth", profile="calibrate", pass_no=0, phase="calibrate"), Limits(), lanes)


def _errors(records: Sequence[Record], sent: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """(of chunks, of TTFTs) in nanoseconds, without sign."""
    chunks: list[int] = []
    ttfts: list[int] = []
    for record in records:
        if record.failure is None and record.sent_ns is not None:
            truth = sent[record.id]
            chunks += [abs(ours - theirs) for ours, theirs in zip(record.chunk_ns, truth["sent_ns"], strict=True)]
            ttft_ns = record.chunk_ns[0] - record.sent_ns
            ttfts.append(abs(ttft_ns - (truth["sent_ns"][0] - truth["received_ns"])))
    return chunks, ttfts


def _chunks_per_s(driven: Driven, lanes: int) -> float:
    """While all lanes are busy: so many times the rate of one."""
    gaps = [b - a for record in driven.records for a, b in itertools.pairwise(record.chunk_ns)]
    return lanes * 1e9 * len(gaps) / sum(gaps) if sum(gaps) else 0.0


def _quantile(values: Sequence[int], q: float) -> float:
    return sorted(values)[int(q * len(values))]


async def _page(side: Opened, name: str) -> dict[str, Any]:
    page = await side_get(side, side.target.root_url(name))
    if page is None:
        raise EndpointError("The built-in truth server died, or this machine has no processor time left for it.")
    content: dict[str, Any] = orjson.loads(page)
    return content


@contextlib.contextmanager
def _truth_server() -> Iterator[str]:
    options = ["--first-ms", str(_FIRST_MS), "--gap-ms", str(_GAP_MS)]
    words = [sys.executable, "-P", "-m", "loadgen.truth", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=same_packages(), text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()
