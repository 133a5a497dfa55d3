"""Whatever a server sends, however it is cut: one reading, a record that can be read again, and never an exception."""

import asyncio
import contextlib
import itertools
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asking import Asking, at
from loadgen import dialects
from loadgen.profile import Limits
from loadgen.record import SCORE_DTYPE, Broken, Failure, Record, Run, RunWriter, Telemetry
from loadgen.record.writer import take_anchor
from loadgen.reply import Reply
from loadgen.telemetry import read_capacity, read_metrics
from loadgen.transcript import Transcript
from loadgen.transport import SocketTransport
from playback import LAST, STREAM, Script, chunk, playing

NAMES = st.sampled_from(dialects.names())
IMPATIENT = Limits(connect_s=1, first_token_s=1, idle_s=1, request_s=1)
WORDS = """
choices index text delta content role reasoning reasoning_content tool_calls function arguments token_ids finish_reason
prompt_token_ids usage prompt_tokens completion_tokens prompt_tokens_details cached_tokens logprobs token tokens
token_logprobs top_logprobs logprob id error message code detail object meta_info output_ids type output_token_logprobs
output_top_logprobs stop stop_type tokens_predicted completion_probabilities timings draft_n sglext spec_tokens_details
metrics speculative_decoding
"""
FIELDS = st.sampled_from(WORDS.split())
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["stop", "token_id:7", "-inf", "abort"]),
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12
)
CHOICES = st.lists(st.dictionaries(FIELDS, JSON, max_size=5), min_size=1, max_size=1)
EVENTS = st.one_of(
    st.dictionaries(FIELDS, JSON, max_size=4),
    st.builds(lambda choices, more: more | {"choices": choices}, CHOICES, st.dictionaries(FIELDS, JSON, max_size=3)),
).map(orjson.dumps)
LINES = st.one_of(
    EVENTS.map(lambda data: b"data: " + data),
    st.sampled_from([b"data: [DONE]", b"", b"", b": ping", b"event: error", b"data:", b"\xef\xbb\xbf", b"retry: 1"]),
    st.binary(max_size=12),
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(lambda parts: b"".join(itertools.chain(*parts)))
CUTS = st.lists(st.integers(0, 2000), max_size=12)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(borders)]


def reading(dialect: str, reads: Sequence[bytes], echo: str | None, gzip: bool) -> dict[str, Any]:
    """All that a transcript says of a stream, its moments left out."""

    async def read() -> dict[str, Any]:
        reply = Reply()
        reply.headers = [(b"content-encoding", b"gzip")] if gzip else []
        reply.reads = [(0, piece) for piece in reads if piece]
        transcript = Transcript(dialects.load(dialect), echo)
        transcript.finish(reply)
        said = {name: value for name, value in vars(transcript).items() if not name.startswith(("_", "chunk_read"))}
        return said | {"text": transcript.text, "reasoning": transcript.reasoning}

    return asyncio.run(read())


@given(dialect=NAMES, stream=STREAMS, cuts=CUTS, echo=st.none() | st.sampled_from(["stop", "a"]), gzip=st.booleans())
def test_a_stream_has_one_reading_however_it_is_cut(
    dialect: str, stream: bytes, cuts: list[int], echo: str | None, gzip: bool
) -> None:
    """Whole, cut anywhere, and byte by byte, in every dialect, compressed or not."""
    data = zlib.compress(stream) if gzip else stream
    whole = reading(dialect, [data], echo, gzip)
    assert whole == reading(dialect, pieces(data, cuts), echo, gzip)
    assert whole == reading(dialect, [bytes([byte]) for byte in data], echo, gzip)


HEADS = st.one_of(
    st.just(STREAM),
    st.sampled_from([200, 201, 302, 400, 404, 422, 429, 503]).map(
        lambda status: b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" % status
    ),
    st.binary(max_size=30).map(
        lambda value: STREAM[:-2] + b"Retry-After: " + value.replace(b"\r", b"").replace(b"\n", b"") + b"\r\n\r\n"
    ),
)


@settings(max_examples=60)
@given(
    dialect=NAMES,
    method=st.sampled_from(["chat", "completions"]),
    head=HEADS,
    body=STREAMS | JSON.map(orjson.dumps) | st.binary(max_size=60),
    cuts=CUTS,
    then=st.sampled_from(["keep", "close", "reset"]),
)
def test_every_answer_becomes_a_record_that_can_be_read_again(
    dialect: str,
    method: Literal["chat", "completions"],
    head: bytes,
    body: bytes,
    cuts: list[int],
    then: Literal["keep", "close", "reset"],
) -> None:
    """Over a socket: any status, any body, ended in any way."""
    parts = [chunk(piece) for piece in pieces(body, cuts) if piece]
    assert_recorded(Script([head, *parts, *([LAST] if then != "reset" else [])], then), dialect, method)


@settings(max_examples=60)
@given(said=st.binary(max_size=200) | st.binary(max_size=80).map(lambda tail: STREAM + tail))
def test_what_is_no_http_is_a_failure(said: bytes) -> None:
    """Any bytes at all, and any behind a proper head."""
    assert_recorded(Script([said], "close"), "vllm", "completions")


def assert_recorded(script: Script, dialect: str, method: Literal["chat", "completions"]) -> None:
    async def performed() -> Record:
        transport = SocketTransport()
        try:
            async with playing(script) as server:
                return await at(transport, server.url, Asking(dialect, method, limits=IMPATIENT))
        finally:
            await transport.aclose()

    record = asyncio.run(performed())
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder, "run"), {"endpoints": {}}, take_anchor("read"))
        writer.record(record)
        writer.end("done", {})
        (again,) = Run.open(Path(folder, "run")).records()
    assert record == replace(again, tool_calls=record.tool_calls, speculation=record.speculation)


SERIES = st.sampled_from(
    [
        name
        for dialect in dialects.names()
        for metric in dialects.load(dialect).METRICS.values()
        for name in metric.families
    ]
    + ["vllm:cache_config_info", "sglang:max_total_num_tokens", "x", "# TYPE", "# HELP"]
)
PAGE_LINES = st.tuples(
    SERIES,
    st.text('{}",=\\ \t01e+-.#NaIif\u0085\u2028é', max_size=25)
    | st.sampled_from(['{engine="0"} 5', "{} 1", " NaN", ' {a="b",} 1e3 7', '{kv_cache_size_tokens="64"} 1', " 1_0"]),
).map("".join)
PAGES = st.lists(PAGE_LINES | st.text(max_size=10), max_size=8).map("\n".join)


@given(page=PAGES, dialect=NAMES)
def test_any_page_of_metrics_is_read_or_says_nothing(page: str, dialect: str) -> None:
    """And what it says are finite numbers."""
    room = read_capacity(page, dialects.load(dialect))
    assert room is None or room > 0
    values = read_metrics(page, dialects.load(dialect))
    assert all(-float("inf") < value < float("inf") for value in values.values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with everything in it that a reader reads."""
    path = tmp_path_factory.mktemp("garbage") / "run"
    writer = RunWriter(path, {"endpoints": {"stock": {}}, "profiles": {"solo": {}}}, take_anchor("read"))
    fields = {"endpoint": "stock", "profile": "solo", "pass_no": 0}
    writer.record(
        Record(
            id="0" * 31 + "1",
            lane=0,
            phase="timed",
            prompt_id="solo-0-0",
            asked={"max_tokens": 8},
            chunk_ns=[5],
            chunk_tokens=[1],
            chunk_ambiguous=[False],
            token_ids=[3],
            failure=Failure(kind="stalled", detail="late"),
            **fields,
        )
    )
    writer.telemetry(Telemetry(kind="border", at_ns=1, edge="start", values={"running": 1.0}, **fields))
    writer.scores("stock", "solo", 0, np.zeros(2, np.dtype(SCORE_DTYPE)))
    writer.end("done", {})
    return path


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
@given(
    name=st.sampled_from(["run.json", "end.json", "records.jsonl", "telemetry.jsonl", "scores/stock-solo-0.npy"]),
    start=st.integers(0, 500),
    length=st.integers(0, 40),
    instead=st.binary(max_size=8) | JSON.map(orjson.dumps),
)
def test_a_run_whose_bytes_were_changed_is_read_or_broken(
    whole: Path, name: str, start: int, length: int, instead: bytes
) -> None:
    """Any bytes of any file: what is read is of the right types, and nothing else than Broken is raised."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        shutil.copytree(whole, path)
        content = (path / name).read_bytes()
        start = min(start, len(content))
        (path / name).write_bytes(content[:start] + instead + content[start + length :])
        with contextlib.suppress(Broken):
            run = Run.open(path)
            for part in (run.records, run.anchors, run.telemetry, run.scores):
                with contextlib.suppress(Broken):
                    list(part())
