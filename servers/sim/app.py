"""The embedded engine's OpenAI-compatible API, as vLLM serves it: a shell around the discrete-event core."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from servers.sim import protocol, tokenizer
from servers.sim.answers import Reply, chunks, whole
from servers.sim.asgi import PROMETHEUS, Exchange, Gone, Receive, Send
from servers.sim.core import Engine
from servers.sim.live import Clock, Live, Stream
from servers.sim.metrics import Exposition
from servers.sim.protocol import Asked, Chat, Completion, Detokenize, Refused, Tokenize, parsed
from servers.sim.scores import Scores
from servers.sim.sequence import Emission
from servers.sim.settings import Settings

VERSION = "loadgate-sim-1"

T = TypeVar("T")
Route = Callable[[Exchange], Awaitable[None]]


def app(settings: Settings, clock: Clock = time.monotonic_ns) -> "Api":
    """The ASGI application of one engine. Under an event loop of virtual time, `clock` gives that loop's time in ns."""
    return Api(Engine(settings, np.random.default_rng(settings.seed)), clock)


class Api:
    """The routes, callable as an ASGI application. `engine` may be read by those who hold it in memory."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.settings = engine.settings
        self._live = Live(engine, clock)
        self._scores = Scores(engine.model)
        self._metrics = Exposition(engine)
        self._created = int(time.time())
        self._routes: dict[str, tuple[str, Route]] = {
            "/v1/completions": ("POST", self.completions),
            "/v1/chat/completions": ("POST", self.chat),
            "/v1/models": ("GET", self.models),
            "/tokenize": ("POST", self.tokenize),
            "/detokenize": ("POST", self.detokenize),
            "/health": ("GET", self.health),
            "/version": ("GET", self.version),
            "/metrics": ("GET", self.metrics),
            "/sim/steps": ("GET", self.steps),
        }

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"This application answers HTTP alone, not {scope['type']}.")
        exchange = Exchange(scope, receive, send)
        method, route = self._routes.get(scope["path"], (scope["method"], _not_found))
        if scope["method"] != method:
            await exchange.answer_json({"detail": "Method Not Allowed"}, 405)
        elif not self._authorized(exchange):
            await exchange.answer_json({"error": "Unauthorized"}, 401)
        else:
            with contextlib.suppress(Gone):
                await _refusing(route, exchange)

    def _authorized(self, exchange: Exchange) -> bool:
        key = self.settings.api_key
        open_to_all = key is None or not exchange.scope["path"].startswith("/v1")
        return open_to_all or exchange.header(b"authorization") == f"Bearer {key}"

    async def completions(self, exchange: Exchange) -> None:
        body = parsed(Completion, await exchange.body(), self.settings)
        await self._reply(exchange, protocol.completion(body, self.settings))

    async def chat(self, exchange: Exchange) -> None:
        body = parsed(Chat, await exchange.body(), self.settings)
        await self._reply(exchange, protocol.chat(body, self.settings))

    async def _reply(self, exchange: Exchange, asked: Asked) -> None:
        given = exchange.header(b"x-request-id") or uuid.uuid4().hex
        answer_id = f"{'chatcmpl' if asked.chat else 'cmpl'}-{given}"
        reply = Reply(asked, self._scores, answer_id, int(time.time()), self.settings.model, self.settings.fault)
        if self.settings.fault == "dropped" and self.engine.drops():
            raise Refused("The engine failed.", status=500, kind="InternalServerError")
        await (self._stream(exchange, reply) if asked.stream else self._whole(exchange, reply))

    async def _stream(self, exchange: Exchange, reply: Reply) -> None:
        async with self._running(exchange, reply.asked, chunks(reply)) as stream:
            await exchange.open_stream()
            async for chunk in stream:
                if chunk:  # nothing where a fault holds it back
                    await exchange.write(chunk, last=False)
            # An aborted request has nobody to tell.
            if stream.sequence.finish_reason != "abort":
                await exchange.write(b"", last=True)

    async def _whole(self, exchange: Exchange, reply: Reply) -> None:
        async with self._running(exchange, reply.asked, _unchanged) as stream:
            emissions = [emission async for emission in stream]
            if stream.sequence.finish_reason != "abort":
                await exchange.answer(whole(reply, emissions))

    @contextlib.asynccontextmanager
    async def _running(
        self, exchange: Exchange, asked: Asked, shape: Callable[[Emission], T]
    ) -> AsyncIterator[Stream[T]]:
        """A submitted request; it is aborted when the client hangs up, or when the answer breaks off."""
        stream = self._live.submit(asked.job, shape)

        async def abort_when_gone() -> None:
            await exchange.disconnected()
            self._live.abort(stream.sequence)

        watch = asyncio.get_running_loop().create_task(abort_when_gone())
        try:
            yield stream
        finally:
            watch.cancel()
            self._live.abort(stream.sequence)

    async def models(self, exchange: Exchange) -> None:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": self._created,
            "owned_by": "loadgate-sim",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.max_model_len,
        }
        await exchange.answer_json({"object": "list", "data": [model]})

    async def tokenize(self, exchange: Exchange) -> None:
        tokens = protocol.tokenize(parsed(Tokenize, await exchange.body(), self.settings))
        count = {"count": len(tokens), "max_model_len": self.settings.max_model_len}
        await exchange.answer_json({**count, "tokens": tokens, "token_strs": None})

    async def detokenize(self, exchange: Exchange) -> None:
        body = parsed(Detokenize, await exchange.body(), self.settings)
        await exchange.answer_json({"prompt": tokenizer.decode(protocol.known_tokens(body.tokens, "tokens"))})

    async def health(self, exchange: Exchange) -> None:
        await exchange.answer(b"")

    async def version(self, exchange: Exchange) -> None:
        await exchange.answer_json({"version": VERSION})

    async def metrics(self, exchange: Exchange) -> None:
        await exchange.answer(self._metrics.text(), PROMETHEUS)

    async def steps(self, exchange: Exchange) -> None:
        """The last steps and what they were modelled to cost: what a measured speed can be checked against."""
        counters, settings = self.engine.counters, self.settings
        fields = ("step_ms", "sequence_ms", "token_ms", "prefill_token_ms", "draft_ms")
        content = {
            "cost": {name: getattr(settings, name) for name in fields},
            "speculative": settings.speculative,
            "steps_total": counters.steps,
            "late_steps_total": counters.late_steps,
            "late_share": counters.late_steps / counters.steps if counters.steps else None,
            "steps": [asdict(step) for step in self.engine.steps],
        }
        await exchange.answer_json(content)


async def _refusing(route: Route, exchange: Exchange) -> None:
    try:
        await route(exchange)
    except Refused as refusal:
        await exchange.answer_json({"error": refusal.error}, refusal.status)


async def _not_found(exchange: Exchange) -> None:
    await exchange.answer_json({"detail": "Not Found"}, 404)


def _unchanged(emission: Emission) -> Emission:
    return emission
