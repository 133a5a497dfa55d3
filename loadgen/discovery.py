"""What a server says it serves: its model, its dialect, its version. A broken set-up ends here, in one sentence."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from loadgen import dialects
from loadgen.credentials import without_secrets
from loadgen.endpoint import (
    Endpoint,
    EndpointError,
    Opened,
    Served,
    Target,
    Transport,
    base_url,
    headers_of,
    joined,
    shown_url,
    timed_client,
)
from loadgen.side import page, side_client

_DIALECTS = {"vllm": "vllm", "loadgate-sim": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
_LISTED_WITHIN_S = 30.0  # httpx's limits are each read's


async def discover(endpoint: Endpoint, http: httpx.AsyncClient) -> tuple[Target, Served]:
    """Asks the server what it serves, and settles model and dialect.

    Raises EndpointError where nothing answers as an OpenAI-compatible server, or the model is not there.
    """
    base = base_url(endpoint.url)
    listing = await _models(endpoint, http, base)
    models = [str(entry["id"]) for entry in listing if "id" in entry]
    first = listing[0] if listing else {}
    owner = str(first["owned_by"]) if first.get("owned_by") else None
    target = Target(
        label=endpoint.label,
        model=_chosen_model(endpoint, models, owner),
        dialect=dialects.load(endpoint.dialect or _dialect_of(owner)),
        base=base,
        headers=headers_of(endpoint),
        extra_body=endpoint.extra_body,
    )
    chosen = next((entry for entry in listing if entry.get("id") == target.model), first)
    length = chosen.get("max_model_len")
    version = await _version(http, target)
    return target, Served(models, owner, length if type(length) is int and length > 0 else None, version)


def _dialect_of(owner: str | None) -> str:
    """By who says to own the models; anything unknown is held to the plain standard unless told."""
    return _DIALECTS.get(owner or "", "openai")


async def _models(endpoint: Endpoint, http: httpx.AsyncClient, base: httpx.URL) -> list[dict[str, Any]]:
    url = joined(base, "models")
    answer = await _answered(endpoint, http, url)
    if answer.status_code in (401, 403):
        raise EndpointError(
            f"{endpoint.shown} refuses the key: GET {shown_url(url)} came back with {answer.status_code} "
            f"({_message(endpoint, answer)}). "
            f"Name the variable that holds the right one with --api-key-env NAME."
        )
    if answer.status_code == 404 and endpoint.model is not None:
        return []  # some providers have no model list; the first request will tell
    if answer.status_code == 503:
        raise EndpointError(
            f"{endpoint.shown} is not ready: GET {shown_url(url)} came back with 503 ({_message(endpoint, answer)}). "
            f"Wait, and try again."
        )
    try:
        # Not answer.json(), which lets pass what no file of a run can hold: half surrogates, numbers of any size.
        listed = orjson.loads(answer.content)["data"]
        if answer.status_code != 200 or not all(isinstance(entry, dict) for entry in listed):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise EndpointError(
            f"{endpoint.shown} answers, but not as an OpenAI-compatible server: GET {shown_url(url)} came back with "
            f"{answer.status_code} ({_message(endpoint, answer)}). Check the address and its path."
        ) from None
    return list(listed)


async def _answered(endpoint: Endpoint, http: httpx.AsyncClient, url: httpx.URL) -> httpx.Response:
    try:
        async with asyncio.timeout(_LISTED_WITHIN_S):
            return await http.get(url)
    except TimeoutError as error:
        raise EndpointError(
            f"{endpoint.shown} gave no whole answer: GET {shown_url(url)} was not done within {_LISTED_WITHIN_S:g} s. "
            f"Is it overloaded, or something else than a model server?"
        ) from error
    except httpx.HTTPError as error:
        why = str(error).rstrip(".") or type(error).__name__
        hint = "Is the server running, and is this its address?"
        if "CERTIFICATE" in why.upper():
            hint = "Give its certificate with --ca FILE, or accept any with --insecure."
        elif isinstance(error, httpx.RemoteProtocolError):
            hint = "Something listens there, but it does not speak HTTP (or wants https)."
        raise EndpointError(f"{endpoint.shown} gave no answer: GET {shown_url(url)}: {why}. {hint}") from error


def _message(endpoint: Endpoint, answer: httpx.Response) -> str:
    """The server's own words, whatever the shape of its error body; cut short, control characters and secrets gone."""
    if answer.is_redirect:
        return _one_line(f"a redirect to {answer.headers['location']}, which is not followed", headers_of(endpoint))
    try:
        body = orjson.loads(answer.content)
    except ValueError:
        body = answer.text
    if isinstance(body, dict):
        body = body.get("error", body.get("message", body.get("detail", body)))
    if isinstance(body, dict):
        body = body.get("message", body)
    return _one_line(str(body), headers_of(endpoint)) or "an empty body"


def _one_line(said: str, headers: Mapping[str, str]) -> str:
    shown = "".join(char if char.isprintable() else " " for char in without_secrets(said, headers))
    return " ".join(shown.split())[:200]


def _chosen_model(endpoint: Endpoint, models: list[str], owner: str | None) -> str:
    listed = _one_line(", ".join(models[:20]), {})
    if endpoint.model is not None:
        # Others know their models by more names than they list: the first request will tell.
        if models and endpoint.model not in models and _dialect_of(owner) == "vllm":
            raise EndpointError(
                f'{endpoint.shown} answers, but has no model "{endpoint.model}". It serves: {listed}. '
                f"Try one of them with --model."
            )
        return endpoint.model
    if len(models) == 1:
        return models[0]
    if not models:
        raise EndpointError(f"{endpoint.shown} lists no model. Name one with --model NAME.")
    raise EndpointError(f"{endpoint.shown} serves {len(models)} models: {listed}. Choose one with --model NAME.")


async def _version(http: httpx.AsyncClient, target: Target) -> str | None:
    answer = await page(http, target.root_url("version"))
    try:
        version = orjson.loads(answer).get("version") if answer is not None else None
    except (ValueError, AttributeError):
        return None
    return str(version) if version is not None else None


async def open_endpoint(endpoint: Endpoint, timed: Transport, side: Transport | None = None) -> Opened:
    """Discovers the endpoint and keeps its two clients. `side` None: httpx's own transport. Raises EndpointError."""
    http = side_client(endpoint, side)
    try:
        target, served = await discover(endpoint, http)
    except BaseException:  # cancelled too: nobody else holds this client yet
        await asyncio.shield(http.aclose())
        raise
    return Opened(endpoint, target, served, http, timed_client(timed))
