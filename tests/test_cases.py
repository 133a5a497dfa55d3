"""Servers' answers that other clients misread, each played over a socket: tests/cases, read as replay.py says.

A row's `why` is the fact tested. What a case leaves out of its expectation is missing in the record: None, or none.
"""

import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest
from replay import Answer, Case, load, tables

from asking import PLACE, Asking, client
from gates import speed
from gates.evidence import Arm, Pass
from gates.scored import Scored
from loadgen.client import Client
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint, Opened
from loadgen.profile import Limits
from loadgen.prompts import Prompt
from loadgen.record import SCORE_DTYPE, Record
from loadgen.score import as_array
from loadgen.side import side_post
from loadgen.telemetry import capacity, counters
from loadgen.transport import SocketTransport
from playback import DONE, answer, delta, playing, stream, usage

REPLIES = ["framing", "first_token", "speculation", "accounting", "http", "logprobs", "engines"]
# Where a case says nothing of them.
EXPECTED: dict[str, Any] = {"fail": None, "tokens": None, "finish": None, "flags": []}
TOLERANCE_NS = 500_000  # between the kernel's clock and ours
HERE = stream(delta(role="assistant", content=""), delta(content="Here"), delta(finish="stop"), usage(7, 2), DONE)
NONE = answer(404, b"{}")


@pytest.fixture
async def transport() -> AsyncIterator[SocketTransport]:
    made = SocketTransport()
    yield made
    await made.aclose()


def cases(*families: str) -> pytest.MarkDecorator:
    found = [case for family in families for case in load(family)]
    return pytest.mark.parametrize("case", found, ids=[case.id for case in found])


def rows(family: str) -> pytest.MarkDecorator:
    found = tables(family)
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


async def asked(ours: Client, case: Asking) -> Record:
    kept: list[Record] = []
    await ours.perform(ours.prepare(case.request()), PLACE, None, kept.append)
    (record,) = kept
    return record


@cases(*REPLIES)
async def test_answers_are_read_as_their_server_means_them(transport: SocketTransport, case: Case) -> None:
    """One request an answer, by the client that `run` has; see the cases for what each is about."""
    asking = Asking(
        case.dialect,
        "chat" if case.method == "chat" else "completions",
        case.asked,
        Prompt(text=case.prompt),
        Limits(connect_s=5, first_token_s=5, idle_s=case.idle_s, request_s=10),
        case.extra_body,
        case.model,
    )
    async with playing(*(answer.script for answer in case.answers)) as server:
        ours = client(transport, server.url, asking)
        records = [await asked(ours, asking) for _ in case.answers]

    assert len(server.requests) == len(case.answers)  # nothing is tried again
    for record, given, sends in zip(records, case.answers, server.sends, strict=True):
        expected = EXPECTED | given.expect
        actual = seen(record) | placed(given, sends, record)
        assert {name: actual[name] for name in expected} == expected, case.why


def seen(record: Record) -> dict[str, Any]:
    ids, counted = record.token_ids, record.usage.completion_tokens if record.usage else None
    nothing = 0 if record.failure is not None and not record.chunk_ns else None
    values = record.logprobs or []
    return {
        "fail": record.failure and record.failure.kind,
        "detail": record.failure and record.failure.detail,
        "status": record.status,
        "text": record.text or "",
        "reasoning": record.reasoning,
        "arguments": record.tool_calls and record.tool_calls[0]["function"]["arguments"],
        "tokens": len(ids) if ids is not None else counted if counted is not None else nothing,
        "usage": record.usage and [record.usage.prompt_tokens, record.usage.completion_tokens],
        "ids": ids,
        "prompt_ids": record.prompt_token_ids,
        "finish": record.finish_reason,
        "chunks": len(record.chunk_ns),
        "per_chunk": record.chunk_tokens,
        "speculation": record.speculation,
        "flags": record.flags,
        "logprobs": len(values),
        "values": [one.logprob for one in values],
        "scored_ids": [one.token_id for one in values],
        "listed": [len(one.top) for one in values],
        "top_ids": [[token_id for token_id, _, _ in one.top] for one in values],
        "best": [max(((value, text) for _, text, value in one.top), default=(0, ""))[1] for one in values],
    }


def placed(given: Answer, sends: list[int], record: Record) -> dict[str, int | None]:
    """In which writes the first and the last token came, by the stamps of both sides."""
    writes = sends[given.head : given.head + given.writes]

    def write_of(stamp_ns: int) -> int:
        return max(index for index, sent in enumerate(writes) if sent <= stamp_ns + TOLERANCE_NS)

    stamps = record.chunk_ns
    return {"first": write_of(stamps[0]) if stamps else None, "last": write_of(stamps[-1]) if stamps else None}


async def test_the_limit_runs_from_the_last_token_on(transport: SocketTransport) -> None:
    """Pings do not put it off: what is silent for 0.3 s is given up then, though they keep coming."""
    (case,) = [case for case in load("http") if case.id == "silence after a token"]
    asking = Asking(limits=Limits(connect_s=5, first_token_s=5, idle_s=case.idle_s, request_s=10), kind="chat")
    async with playing(case.answers[0].script) as server:
        record = await asked(client(transport, server.url, asking), asking)

    assert record.end_ns is not None
    assert 0.3 <= (record.end_ns - record.chunk_ns[0]) / 1e9 < 0.45


@rows("scores")
async def test_scores_are_of_the_tokens_sent(transport: SocketTransport, case: dict[str, Any]) -> None:
    """Read from an answer over the socket, by the dialect, into what is kept on the disk."""
    models = answer(200, orjson.dumps({"data": [{"id": "pebble", "owned_by": case["dialect"]}]}))
    async with playing(models, NONE, answer(200, case["body"].encode())) as server:
        reference = await open_endpoint(Endpoint(url=server.url), transport)
        dialect = reference.target.dialect
        body = dialect.score_body(case["ids"], "pebble")
        said = await side_post(reference, reference.target.method_url("scores"), body or {})
        await reference.close()
    first, *scores = dialect.read_scores(orjson.loads(said.content))
    array = as_array("0" * 32, case["ids"][1:], scores)

    assert first is None, case["why"]
    assert array["logprob"].tolist() == case["values"], case["why"]
    assert (array["logprob"] >= array["logprobs"].max(axis=1)).tolist() == case["first_choice"], case["why"]


@rows("metrics")
async def test_metrics_are_read_over_all_engines(transport: SocketTransport, case: dict[str, Any]) -> None:
    """From a page over the socket to the neutral names; what is not there is in no value."""
    models = answer(200, orjson.dumps({"data": [{"id": "pebble", "owned_by": case["dialect"]}]}))
    pages = [answer(200, page["text"].encode(), "text/plain; version=0.0.4") for page in case["page"]]
    async with playing(models, NONE, *pages) as server:
        found = await open_endpoint(Endpoint(url=server.url), transport)
        values = [await counters(found) for _ in pages]
        room = await capacity(found)
        await found.close()

    assert values == [page["values"] for page in case["page"]], case["why"]
    assert [per_step(one) for one in values] == [case.get("per_step")] * len(pages), case["why"]
    assert room == case.get("capacity"), case["why"]


def per_step(counted: dict[str, float]) -> float | None:
    """Tokens a verify step, as a verdict has it, of a server that had counted nothing before."""
    none = Scored(np.empty(0, SCORE_DTYPE), np.empty(0, np.int64), {})
    one = Pass("team", 0, [], none, dict.fromkeys(counted, 0.0), counted)
    return speed.acceptance(Arm("candidate", "c", [one], []), "team")


@rows("urls")
async def test_requests_go_where_the_address_says(transport: SocketTransport, case: dict[str, Any]) -> None:
    """However it is written; discovery comes before, as in a run."""
    host = case.get("host", "127.0.0.1")
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no ::1")
    models = answer(200, orjson.dumps({"data": [{"id": "pebble", "owned_by": "quarry"}]}))
    for url in case["urls"]:
        async with playing(models, NONE, HERE, host=host) as server:
            port = int(server.url.rsplit(":", 1)[1])
            found = await open_endpoint(
                Endpoint(url=url.replace("{port}", str(port)), model=case.get("model")), transport
            )
            record, sent = await _first_request(found), server.requests[-1]
            await found.close()
        line, *headers = sent.partition(b"\r\n\r\n")[0].decode().split("\r\n")

        assert (record.failure, record.text) == (None, "Here")
        assert line == f"POST {case['target']} HTTP/1.1", url
        assert f"Host: {'[::1]' if host == '::1' else host}:{port}" in headers
        assert orjson.loads(sent.partition(b"\r\n\r\n")[2])["model"] == case.get("model", "pebble")


async def _first_request(found: Opened) -> Record:
    asking = Asking(kind="chat")
    return await asked(Client(found.timed, found.target, asking.limits, time.monotonic_ns, lambda: "0" * 32), asking)


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as sock:
        return sock.connect_ex(("::1", 1)) != 99
