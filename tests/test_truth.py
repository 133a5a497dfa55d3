"""The client beside a server that knows when it sent each chunk. No time is asserted here: machines differ."""

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import httpx
import pytest

from asking import PATIENT, PLACE
from loadgen import dialects
from loadgen.client import Client
from loadgen.endpoint import Target
from loadgen.prompts import Prompt
from loadgen.record import Record
from loadgen.request import Request
from loadgen.transport import SocketTransport

LANES, CHUNKS, TOKENS = 64, 20, 3


@pytest.fixture(scope="module")
def truth() -> Iterator[str]:
    """The truth server in a process of its own."""
    options = ["--port", "0", "--first-ms", "5", "--gap-ms", "5", "--tokens", str(TOKENS)]
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen.truth", *options], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.terminate()


@pytest.mark.parametrize("kind", ["completions", "chat"])
async def test_every_chunk_of_64_lanes_is_there_with_a_stamp(truth: str, kind: str) -> None:
    """Token counts are exact, and every chunk has an arrival that is no earlier than its sending."""
    transport = SocketTransport()
    async with httpx.AsyncClient(transport=transport) as http:
        target = Target("truth", "truth", dialects.load("vllm"), httpx.URL(truth + "/v1"), {}, {})
        client = Client(http, target, PATIENT, time.monotonic_ns, lambda: uuid.uuid4().hex)
        await client.open(LANES)
        asked = {"max_tokens": CHUNKS * TOKENS - 1}
        requests = [Request(str(i), Prompt(text="a"), kind, asked, i, None) for i in range(LANES)]  # type: ignore[arg-type]
        prepared = [client.prepare(request) for request in requests]
        records: list[Record] = []
        await asyncio.gather(*(client.perform(one, PLACE, None, records.append) for one in prepared))
        sent = (await http.get(truth + "/sent")).json()
    assert len(records) == LANES
    for record in records:
        assert (record.failure, record.flags) == (None, [])
        assert record.chunk_tokens == [TOKENS] * (CHUNKS - 1) + [TOKENS - 1]
        assert record.token_ids == [100, 101, 102] * (CHUNKS - 1) + [100, 101]
        assert record.connect_ns is None
        true_ns = sent[record.id]["sent_ns"]
        assert len(true_ns) == len(record.chunk_ns) == len(record.chunk_ambiguous)
        # A step of the kernel's clock within the test would be the one innocent way to be early.
        assert all(arrived > left - 1_000_000 for arrived, left in zip(record.chunk_ns, true_ns, strict=True))
