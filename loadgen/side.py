"""Requests beside the load: pages of a server, scoring, tokenizing. httpx as it comes; nothing here is timed."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import orjson

from loadgen.credentials import without_secrets
from loadgen.dialects import DialectError
from loadgen.endpoint import (
    Endpoint,
    EndpointError,
    Opened,
    Transport,
    headers_of,
    is_loopback,
    shown_url,
    tls_context,
)

_Read = TypeVar("_Read")

_SIDE_LIMITS = httpx.Timeout(30.0, connect=10.0)
_SCORE_LIMITS = httpx.Timeout(300.0, connect=10.0)  # the first scoring request of a real engine compiles kernels
_JSON = {"Content-Type": "application/json"}
_PAGE_S = 5.0  # a page beside the API; the drained server has nothing else to do
_PAGE_BYTES = 16 << 20


def side_client(endpoint: Endpoint, transport: Transport | None = None) -> httpx.AsyncClient:
    """httpx as it comes, for everything that is not timed. Proxies of the environment count for remote hosts only."""
    return httpx.AsyncClient(
        transport=transport,
        headers=headers_of(endpoint),
        verify=tls_context(endpoint),
        timeout=_SIDE_LIMITS,
        # Servers close what was idle for a few seconds; a request sent into that is lost.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=1.0),
        trust_env=not endpoint.on_loopback,
    )


async def page(http: httpx.AsyncClient, url: httpx.URL) -> bytes | None:
    """A page that a server need not have; None too where it comes too slowly or is too large to be one."""
    content = bytearray()
    try:
        async with asyncio.timeout(_PAGE_S), http.stream("GET", url) as answer:
            if answer.status_code != 200:
                return None
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > _PAGE_BYTES:
                    return None
    except (httpx.HTTPError, TimeoutError):
        return None
    return bytes(content)


async def side_get(opened: Opened, url: httpx.URL) -> str | None:
    """A page beside the API as text; None where the server has none, or does not answer with one in a few seconds."""
    content = await page(opened.side, url)
    return None if content is None else content.decode("utf-8", "replace")


class Unreachable(Exception):
    """A side request came back with no HTTP answer at all."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content: bytes


async def side_post(opened: Opened, url: httpx.URL, body: Mapping[str, Any]) -> Answer:
    """An untimed request, such as one that scores. Raises Unreachable."""
    try:
        async with asyncio.timeout(_SCORE_LIMITS.read):
            answer = await opened.side.post(url, content=orjson.dumps(body), headers=_JSON, timeout=_SCORE_LIMITS)
    except (httpx.HTTPError, TimeoutError) as error:
        raise Unreachable(str(error) or type(error).__name__) from error
    return Answer(answer.status_code, answer.content)


class ReferenceDied(Exception):
    """The reference server, or an oracle, stopped answering. Exit 4; what was measured stays."""


_BUSY = (429, 503)
_PAUSES_S = (0.5, 2.0)  # before the second try and the third


async def posted(reference: Opened, url: httpx.URL, body: Mapping[str, Any]) -> Answer:
    """What the reference answers; asked again where it is busy or the connection was lost. Raises ReferenceDied."""
    for pause_s in (*_PAUSES_S, None):
        last_try = pause_s is None
        try:
            answer = await side_post(reference, url, body)
            if last_try or answer.status not in _BUSY:
                return answer
            await asyncio.sleep(pause_s or 0)
        except Unreachable as error:
            # A kept-alive connection that the server closed meanwhile is no death.
            if last_try:
                raise ReferenceDied(
                    f"{reference.endpoint.label} ({reference.endpoint.public()['url']}) stopped answering while it "
                    f"scored ({error}). What was measured is kept: `loadgate score` can score it later."
                ) from error
    raise AssertionError("the last try returns or raises")


async def read_posted(
    reference: Opened, method: str, body: Mapping[str, Any], read: Callable[[Any], _Read], lacking: str
) -> _Read | str:
    """What `read` makes of the reference's answer; or its refusal in its words, or `lacking` where it cannot be read.

    Raises ReferenceDied.
    """
    answer = await posted(reference, reference.target.method_url(method), body)
    try:
        content = orjson.loads(answer.content)
        if answer.status != 200:
            return f"{answer.status}: {without_secrets(str(content), reference.target.headers)[:200]}"
        return read(content)
    except (DialectError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return f"{answer.status}, and {lacking}"


def tokenize(opened: Opened, text: str) -> list[int]:
    """Token ids by the server's own /tokenize, for prompts of exact lengths; blocking, used before the clock starts.

    Raises EndpointError where the server has no such page.
    """
    target = opened.target
    url = target.root_url("tokenize")
    body = {"model": target.model, "prompt": text, "add_special_tokens": False}
    loopback = is_loopback(url.host)
    try:
        with httpx.Client(
            headers=dict(target.headers),
            verify=tls_context(opened.endpoint),
            timeout=_SIDE_LIMITS,
            trust_env=not loopback,
        ) as http:
            answer = http.post(url, json=body)
        tokens = orjson.loads(answer.content)["tokens"] if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        tokens = None
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise EndpointError(
            f"{target.label} has no /tokenize that answers with token ids ({shown_url(url)}), and synthetic text "
            f"prompts of exact lengths need one. Use token-id prompts, or the builtin source."
        )
    return tokens
