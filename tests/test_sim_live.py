import asyncio
import time
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from loadgen import virtual
from loadgen.memory import MemoryTransport
from loadgen.reply import Clock, Reply
from servers.sim.app import Api, app
from servers.sim.core import Engine
from servers.sim.live import Live
from servers.sim.sequence import Job
from servers.sim.settings import Settings

BODY: dict[str, Any] = {"prompt": [5, 6, 7], "stream": True, "ignore_eos": True}


def api(clock: Clock, **settings: Any) -> Api:
    return app(Settings(rows=64, seed=0, **settings), clock)


async def post(api: Api, clock: Clock, **body: Any) -> Reply:
    async with httpx.AsyncClient(transport=MemoryTransport(api, clock)) as client:
        request = client.build_request("POST", "http://sim/v1/completions", json={**BODY, **body})
        await client.send(request)
        reply: Reply = request.extensions["reply"]
        return reply


def test_under_a_virtual_clock_chunks_come_at_the_modelled_moments() -> None:
    """Each chunk's stamp is the modelled end of its step, to the rounding of the loop's time."""

    async def main(clock: Clock) -> tuple[list[int], list[int], int]:
        sim = api(clock)
        reply = await post(sim, clock, max_tokens=50)
        return [at for at, _ in reply.reads], [step.end_ns for step in sim.engine.steps], sim.engine.counters.late_steps

    stamps, ends, late = virtual.run(main)
    assert len(stamps) == len(ends) == 50
    assert stamps == pytest.approx(ends, abs=2_000)
    assert late == 0


def test_a_minute_of_load_takes_no_minute() -> None:
    """Eight closed lanes for 60 modelled seconds: tokens and time are those of the cost model, in well under that."""

    async def main(clock: Clock) -> tuple[Engine, int]:
        sim = api(clock)
        until_ns = clock() + 60 * 10**9

        async def lane() -> int:
            tokens = 0
            while clock() < until_ns:
                reply = await post(sim, clock, max_tokens=100, return_token_ids=True)
                tokens += sum(len(orjson.loads(event[6:])["choices"][0]["token_ids"]) for event in parts(reply))
            return tokens

        return sim.engine, sum(await asyncio.gather(*[lane() for _ in range(8)]))

    def parts(reply: Reply) -> list[bytes]:
        whole = b"".join(data for _, data in reply.reads)
        return [part for part in whole.split(b"\n\n") if part.startswith(b"data: {")]

    began = time.monotonic()
    engine, tokens = virtual.run(main)
    assert tokens == engine.counters.generation_tokens
    # Eight tokens a step of 10 + .8 + .4 ms; prompts of three tokens hardly count.
    assert engine.counters.generation_tokens / engine.counters.modelled_ns * 1e9 == pytest.approx(8 / 11.2e-3, rel=0.02)
    assert time.monotonic() - began < 30


def test_the_same_seed_gives_the_same_run() -> None:
    """Under the virtual clock nothing else is random: stamps and bytes repeat, but for ids that name the answer."""

    async def main(clock: Clock) -> list[int]:
        sim = api(clock, speculative=4)
        replies = await asyncio.gather(*[post(sim, clock, max_tokens=40 + lane) for lane in range(5)])
        return [at for reply in replies for at, _ in reply.reads]

    assert virtual.run(main) == virtual.run(main)


def test_a_client_that_goes_away_in_memory_is_aborted() -> None:
    """A cancelled request frees its memory; the others go on."""

    async def main(clock: Clock) -> Engine:
        sim = api(clock)
        other = asyncio.create_task(post(sim, clock, max_tokens=20))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(post(sim, clock, max_tokens=1000), 0.1)
        await other
        await asyncio.sleep(1)
        return sim.engine

    engine = virtual.run(main)
    assert engine.counters.finished == {"length": 1, "abort": 1}
    assert (engine.kv_usage, engine.running) == (0, [])


async def test_late_steps_do_not_move_the_schedule() -> None:
    """A loop that was blocked delivers late, says so, and is on time again: each step starts where the last ended."""
    live = Live(Engine(Settings(rows=64), np.random.default_rng(0)), time.monotonic_ns)
    stream = live.submit(Job(prompt=[1], max_tokens=30, ignore_eos=True), lambda emission: emission.tokens)
    tokens = []
    async for some in stream:
        tokens += some
        if len(tokens) == 5:
            time.sleep(0.1)  # noqa: ASYNC251 - the loop is blocked on purpose
    steps = list(live.engine.steps)
    assert len(tokens) == 30
    assert [step.start_ns for step in steps[1:]] == [step.end_ns for step in steps[:-1]]
    assert max(step.late_ns for step in steps) > 80e6
    assert live.engine.counters.late_steps == sum(step.late for step in steps) >= 8


async def test_a_request_to_an_idle_engine_starts_at_once() -> None:
    """After a pause the schedule begins anew with the request's arrival."""
    live = Live(Engine(Settings(rows=64, step_ms=1), np.random.default_rng(0)), time.monotonic_ns)
    for _ in range(2):
        arrival_ns = time.monotonic_ns()
        stream = live.submit(Job(prompt=[1], max_tokens=2, ignore_eos=True), lambda emission: emission.tokens)
        assert [len(tokens) async for tokens in stream] == [1, 1]
        assert live.engine.steps[-2].start_ns >= arrival_ns
        await asyncio.sleep(0.02)
