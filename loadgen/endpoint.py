"""One server as the user describes it and as the client addresses it: URL, model, dialect, key, TLS."""

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
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from loadgen.credentials import basic, is_header_name, is_header_value, without_userinfo
from loadgen.dialects import Dialect
from loadgen.record import nearest

Transport = httpx.AsyncBaseTransport

_VERSION_SEGMENT = re.compile(r"v\d+[a-z0-9]*")
_METHOD_PATHS = ("/chat/completions", "/completions", "/models")


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
    def on_loopback(self) -> bool:
        return is_loopback(httpx.URL(self.url).host)

    @property
    def shown(self) -> str:
        """The URL as it may be written down."""
        return shown_url(httpx.URL(self.url))

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
        return joined(self.base, path)

    def method_url(self, method: str) -> httpx.URL:
        """Where the dialect sends "completions", "chat" or "scores"."""
        path = self.dialect.PATHS[method]
        return self.root_url(path[1:]) if path.startswith("/") else self.url(path)

    def root_url(self, path: str) -> httpx.URL:
        """The URL of what lies beside the API: "metrics", "health", "tokenize", "version"."""
        *parents, last = self.base.path.rstrip("/").split("/")
        root = "/".join(parents) if _VERSION_SEGMENT.fullmatch(last) else self.base.path
        return joined(self.base.copy_with(raw_path=root.encode() or b"/"), path)


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
    by_next_token: bool = False  # scores by one request a place, as it tells nothing of a prompt

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


def joined(base: httpx.URL, path: str) -> httpx.URL:
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


def shown_url(url: httpx.URL) -> str:
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


def timed_client(transport: Transport) -> httpx.AsyncClient:
    # The profile's limits are the client's own; httpx's would fire on a queue that is merely long.
    return httpx.AsyncClient(transport=transport, timeout=None, trust_env=False)  # noqa: S113
