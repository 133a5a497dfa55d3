"""One server: where it is, how to be let in, what it says it serves. A broken set-up ends here, in one sentence."""

import asyncio
import ipaddress
import os
import re
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from loadgen import dialects
from loadgen.credentials import basic, is_header_name, is_header_value, without_secrets, without_userinfo
from loadgen.dialects import Dialect
from loadgen.record import nearest

Transport = httpx.AsyncBaseTransport

_VERSION_SEGMENT = re.compile(r"v\d+[a-z0-9]*")
_METHOD_PATHS = ("/chat/completions", "/completions", "/models")
_SIDE_LIMITS = httpx.Timeout(30.0, connect=10.0)
_SCORE_LIMITS = httpx.Timeout(300.0, connect=10.0)  # the first scoring request of a real engine compiles kernels
_DIALECTS = {"vllm": "vllm", "loadgate-sim": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
_JSON = {"Content-Type": "application/json"}
_LISTED_WITHIN_S = 30.0  # httpx's limits are each read's
_PAGE_S = 5.0  # a page beside the API; the drained server has nothing else to do
_PAGE_BYTES = 16 << 20


class EndpointError(Exception):
    """The endpoint never answered as one: what was asked, what came back, what to do. Exit 4."""


class EndpointConfigError(Exception):
    """The endpoint was described wrongly. Exit 2."""


class Endpoint(BaseModel):
    """What the user says of a server: a URL, or a TOML file with these fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    label: str = Field(default="endpoint", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]*$")
    model: str | None = None
    dialect: str | None = None
    api_key_env: str | None = None  # the name of the variable, never the key
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    ca: Path | None = None
    insecure: bool = False
    extra_body: dict[str, Any] = Field(default_factory=dict)

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        shown = without_userinfo(url)
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"{shown!r} is no URL{f' ({error})' if shown == url else ''}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"{shown!r} is no http:// or https:// URL")
        return url

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not is_header_name(name):
                raise ValueError(f"{name!r} is no header's name: letters, digits and dashes are")
            if not is_header_value(value):
                raise ValueError(f"the value of {name} holds a character that no header can carry (ASCII alone can)")
        return headers

    @property
    def host(self) -> str:
        url = httpx.URL(self.url)
        return f"{url.host}:{url.port or (443 if url.scheme == 'https' else 80)}"

    @property
    def shown(self) -> str:
        """The URL as it may be written down."""
        return _shown(httpx.URL(self.url))

    def public(self) -> dict[str, Any]:
        """What may be written down: no key, no header values, no credentials or query values of the URL."""
        return {
            "url": self.shown,
            "model": self.model,
            "dialect": self.dialect,
            "headers": sorted(self.headers),
            "insecure": self.insecure,
            "extra_body": self.extra_body,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """A server as the client addresses it."""

    label: str
    model: str
    dialect: Dialect
    base: httpx.URL  # up to and with the version segment
    headers: Mapping[str, str] = field(repr=False)
    extra_body: Mapping[str, Any]

    def url(self, path: str) -> httpx.URL:
        """The URL of an API method such as "chat/completions"; the base's own query is kept."""
        return _joined(self.base, path)

    def method_url(self, method: str) -> httpx.URL:
        """Where the dialect sends "completions", "chat" or "scores"."""
        path = self.dialect.PATHS[method]
        return self.root_url(path[1:]) if path.startswith("/") else self.url(path)

    def root_url(self, path: str) -> httpx.URL:
        """The URL of what lies beside the API: "metrics", "health", "tokenize", "version"."""
        *parents, last = self.base.path.rstrip("/").split("/")
        root = "/".join(parents) if _VERSION_SEGMENT.fullmatch(last) else self.base.path
        return _joined(self.base.copy_with(raw_path=root.encode() or b"/"), path)


@dataclass(frozen=True, slots=True)
class Served:
    """What a server said of itself. None: it did not say."""

    models: list[str]
    owned_by: str | None
    max_model_len: int | None
    version: str | None


@dataclass(frozen=True, slots=True)
class Opened:
    """A discovered endpoint with its two ways in: `side` for scoring and metrics, `timed` for what is measured."""

    endpoint: Endpoint
    target: Target
    served: Served
    side: httpx.AsyncClient
    timed: httpx.AsyncClient

    async def close(self) -> None:
        await self.side.aclose()
        await self.timed.aclose()


def parse(text: str) -> Endpoint:
    """An endpoint from a URL or from a TOML file's path. Raises EndpointConfigError."""
    if text.endswith(".toml"):
        return _from_toml(Path(text))
    return validated({"url": text}, text)


def validated(fields: Mapping[str, Any], source: str) -> Endpoint:
    try:
        return Endpoint.model_validate(fields)
    except ValidationError as error:
        # Not from error: it holds what was given, secrets among it.
        raise EndpointConfigError(_first_complaint(error, without_userinfo(source))) from None


def _from_toml(path: Path) -> Endpoint:
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EndpointConfigError(
            f"{path} cannot be read ({error.strerror}). Give a URL or an endpoint's file."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EndpointConfigError(f"{path} is no TOML: {error}.") from None
    return validated(fields, str(path))


def _first_complaint(error: ValidationError, source: str) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{source}: an endpoint has no field {key!r}. {nearest(key, Endpoint.model_fields)}"
    return f"{source}: {key}: {first['msg'].removeprefix('Value error, ')}."


def base_url(url: str) -> httpx.URL:
    """The API's base: a version segment at the end is kept, else /v1 is added; a method's own path is taken off.

    So are credentials, which travel in a header.
    """
    parsed = httpx.URL(url).copy_with(userinfo=b"")
    path = parsed.path.rstrip("/")
    for method in _METHOD_PATHS:
        path = path.removesuffix(method)
    path = path.rstrip("/")
    if not _VERSION_SEGMENT.fullmatch(path.rsplit("/", 1)[-1]):
        path += "/v1"
    return parsed.copy_with(path=path, fragment=None)


def _joined(base: httpx.URL, path: str) -> httpx.URL:
    return base.copy_with(path=f"{base.path.rstrip('/')}/{path}")


def headers_of(endpoint: Endpoint) -> dict[str, str]:
    """The headers to send, the key or the URL's credentials among them.

    Raises EndpointConfigError where the named variable is not set, or its value cannot be sent.
    """
    headers = dict(endpoint.headers)
    credentials = httpx.URL(endpoint.url).userinfo
    if credentials and endpoint.api_key_env is None:
        headers["Authorization"] = basic(credentials)
    if endpoint.api_key_env is not None:
        key = os.environ.get(endpoint.api_key_env)
        if not key:
            raise EndpointConfigError(
                f"--api-key-env names {endpoint.api_key_env}, but no such variable is set (or it is empty). "
                f"Set it, for example: export {endpoint.api_key_env}=…"
            )
        if not is_header_value(key.strip()):
            raise EndpointConfigError(
                f"The value of {endpoint.api_key_env} holds a character that no header can carry (ASCII alone can): "
                f"it is no API key, or something was pasted along with it."
            )
        headers["Authorization"] = f"Bearer {key.strip()}"
    return headers


def _shown(url: httpx.URL) -> str:
    return str(url.copy_with(userinfo=b"", query=None))


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if endpoint.insecure:
        return False
    if endpoint.ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(endpoint.ca))
    except (OSError, ssl.SSLError) as error:
        raise EndpointConfigError(f"--ca {endpoint.ca} holds no certificates that can be read ({error}).") from error


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def side_client(endpoint: Endpoint, transport: Transport | None = None) -> httpx.AsyncClient:
    """httpx as it comes, for everything that is not timed. Proxies of the environment count for remote hosts only."""
    return httpx.AsyncClient(
        transport=transport,
        headers=headers_of(endpoint),
        verify=tls_context(endpoint),
        timeout=_SIDE_LIMITS,
        # Servers close what was idle for a few seconds; a request sent into that is lost.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=1.0),
        trust_env=not is_loopback(httpx.URL(endpoint.url).host),
    )


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
    url = _joined(base, "models")
    answer = await _answered(endpoint, http, url)
    if answer.status_code in (401, 403):
        raise EndpointError(
            f"{endpoint.shown} refuses the key: GET {_shown(url)} came back with {answer.status_code} "
            f"({_message(endpoint, answer)}). "
            f"Name the variable that holds the right one with --api-key-env NAME."
        )
    if answer.status_code == 404 and endpoint.model is not None:
        return []  # some providers have no model list; the first request will tell
    if answer.status_code == 503:
        raise EndpointError(
            f"{endpoint.shown} is not ready: GET {_shown(url)} came back with 503 ({_message(endpoint, answer)}). "
            f"Wait, and try again."
        )
    try:
        # Not answer.json(), which lets pass what no file of a run can hold: half surrogates, numbers of any size.
        listed = orjson.loads(answer.content)["data"]
        if answer.status_code != 200 or not all(isinstance(entry, dict) for entry in listed):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise EndpointError(
            f"{endpoint.shown} answers, but not as an OpenAI-compatible server: GET {_shown(url)} came back with "
            f"{answer.status_code} ({_message(endpoint, answer)}). Check the address and its path."
        ) from None
    return list(listed)


async def _answered(endpoint: Endpoint, http: httpx.AsyncClient, url: httpx.URL) -> httpx.Response:
    try:
        async with asyncio.timeout(_LISTED_WITHIN_S):
            return await http.get(url)
    except TimeoutError as error:
        raise EndpointError(
            f"{endpoint.shown} gave no whole answer: GET {_shown(url)} was not done within {_LISTED_WITHIN_S:g} s. "
            f"Is it overloaded, or something else than a model server?"
        ) from error
    except httpx.HTTPError as error:
        why = str(error).rstrip(".") or type(error).__name__
        hint = "Is the server running, and is this its address?"
        if "CERTIFICATE" in why.upper():
            hint = "Give its certificate with --ca FILE, or accept any with --insecure."
        elif isinstance(error, httpx.RemoteProtocolError):
            hint = "Something listens there, but it does not speak HTTP (or wants https)."
        raise EndpointError(f"{endpoint.shown} gave no answer: GET {_shown(url)}: {why}. {hint}") from error


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
    page = await _page(http, target.root_url("version"))
    try:
        version = orjson.loads(page).get("version") if page is not None else None
    except (ValueError, AttributeError):
        return None
    return str(version) if version is not None else None


async def _page(http: httpx.AsyncClient, url: httpx.URL) -> bytes | None:
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
    page = await _page(opened.side, url)
    return None if page is None else page.decode("utf-8", "replace")


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


async def open_endpoint(endpoint: Endpoint, timed: Transport, side: Transport | None = None) -> Opened:
    """Discovers the endpoint and keeps its two clients. `side` None: httpx's own transport. Raises EndpointError."""
    http = side_client(endpoint, side)
    try:
        target, served = await discover(endpoint, http)
    except BaseException:
        await asyncio.shield(http.aclose())
        raise
    # The profile's limits are the client's own; httpx's would fire on a queue that is merely long.
    fast = httpx.AsyncClient(transport=timed, timeout=None, trust_env=False)  # noqa: S113
    return Opened(endpoint, target, served, http, fast)


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
            f"{target.label} has no /tokenize that answers with token ids ({_shown(url)}), and synthetic text prompts "
            f"of exact lengths need one. Use token-id prompts, or the builtin source."
        )
    return tokens
