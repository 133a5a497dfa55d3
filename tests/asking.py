"""A client against a local server that plays given bytes: what is asked, and the record that comes of it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from loadgen import dialects
from loadgen.client import Client, Place
from loadgen.endpoint import Target
from loadgen.profile import Limits
from loadgen.prompts import Prompt
from loadgen.record import Record
from loadgen.reply import Clock
from loadgen.request import Kind, Request
from playback import DONE, Script, playing, stream, text, usage

PLACE = Place(endpoint="stock", profile="solo", pass_no=0, phase="timed")
PATIENT = Limits(connect_s=5, first_token_s=5, idle_s=5, request_s=5)
OK = stream(text("a", [1]), text("b", [2], finish="stop"), usage(3, 2), DONE)


@dataclass
class Asking:
    """What is asked and how; tests change what they are about."""

    dialect: str = "vllm"
    kind: Kind = "completions"
    asked: dict[str, Any] = field(default_factory=lambda: {"max_tokens": 8, "temperature": 1.0})
    prompt: Prompt = field(default_factory=lambda: Prompt(text="Say."))
    limits: Limits = PATIENT
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    model: str = "tide-1"

    def request(self) -> Request:
        return Request("solo-0-0", self.prompt, self.kind, self.asked, lane=0, due_s=None)


def client(transport: httpx.AsyncBaseTransport, url: str, asking: Asking, clock: Clock = time.monotonic_ns) -> Client:
    target = Target(
        label="stock",
        model=asking.model,
        dialect=dialects.load(asking.dialect),
        base=httpx.URL(url).copy_with(path="/v1"),
        headers={"Authorization": "Bearer sesame"},
        extra_body=asking.extra_body,
    )
    numbers = count(1)
    http = httpx.AsyncClient(transport=transport)
    return Client(http, target, asking.limits, clock, lambda: f"{next(numbers):032x}")


async def performed(transport: httpx.AsyncBaseTransport, script: Script, asking: Asking | None = None) -> Record:
    asking = asking or Asking()
    async with playing(script) as server:
        return await at(transport, server.url, asking)


async def at(transport: httpx.AsyncBaseTransport, url: str, asking: Asking) -> Record:
    ours = client(transport, url, asking)
    kept: list[Record] = []
    await ours.perform(ours.prepare(asking.request()), PLACE, None, kept.append)
    (record,) = kept
    return record


def kind(record: Record) -> str | None:
    return record.failure.kind if record.failure else None
