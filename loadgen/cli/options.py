"""Options that several commands share, and what becomes of them: one frozen value each, checked in the first second."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson

from loadgen.endpoint import Endpoint, EndpointConfigError, parse, validated
from loadgen.profile import Profile, ProfileError, load, overridden

F = TypeVar("F", bound=Callable[..., Any])

_ENDPOINT_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "model": ("model name; not needed where the server has one", {"metavar": "NAME"}),
    "dialect": ("how the server speaks: see `loadgate list dialects`", {"metavar": "NAME"}),
    "api-key-env": ("environment variable that holds the API key", {"metavar": "VAR"}),
    "header": ("a header to send, K=V; may be repeated", {"metavar": "K=V", "multiple": True}),
    "ca": ("certificate authority to trust", {"type": click.Path(path_type=Path), "metavar": "FILE"}),
    "insecure": ("accept any TLS certificate", {"is_flag": True, "default": None}),
    "extra-body": ("fields to add to every request's body", {"metavar": "JSON"}),
}
MOST = (1 << 63) - 1  # what fits into a file of a run
_SECRET = ("api-key-env", "header")


def endpoint_options(*prefixes: str) -> Callable[[F], F]:
    """--model, --dialect, … for one endpoint; with prefixes also --stock-model and so on."""

    def wrap(command: F) -> F:
        for prefix in reversed(("", *prefixes)):
            for name, (text, settings) in reversed(_ENDPOINT_OPTIONS.items()):
                hidden = bool(prefix)
                flag = f"--{prefix}-{name}" if prefix else f"--{name}"
                command = click.option(flag, help=text, hidden=hidden, **settings)(command)
        return command

    return wrap


def endpoint_from(text: str, label: str | None, given: Mapping[str, Any], prefix: str = "") -> Endpoint:
    """The endpoint of a URL or TOML file with the options laid over it, those with the prefix last.

    Raises EndpointConfigError.
    """
    described = parse(text)
    fields = described.model_dump(exclude_unset=True)
    for part in ("", prefix) if prefix else ("",):
        for name in _ENDPOINT_OPTIONS:
            key = f"{part}-{name}" if part else name
            value = given.get(key.replace("-", "_"))
            if value not in (None, ()):
                field, parsed = _parsed(key, name, value)
                fields[field] = {**fields.get(field, {}), **parsed} if isinstance(parsed, dict) else parsed
    if label is not None:
        fields["label"] = label
    return validated(fields, text)


def _parsed(key: str, name: str, value: Any) -> tuple[str, Any]:
    if name == "header":
        return "headers", dict(_header(key, item) for item in value)
    if name == "extra-body":
        return "extra_body", _json_object(key, value)
    return name.replace("-", "_"), value


def _header(key: str, item: str) -> tuple[str, str]:
    name, found, value = item.partition("=")
    if not found or not name.strip():
        raise EndpointConfigError(f"--{key} {item!r} is no header: write NAME=VALUE.")
    return name.strip(), value


def _json_object(key: str, text: str) -> dict[str, Any]:
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise EndpointConfigError(f"--{key} is no JSON ({error}). For example: --{key} '{{\"top_k\": 20}}'") from None
    if not isinstance(body, dict):
        raise EndpointConfigError(f"--{key} must be a JSON object, such as '{{\"top_k\": 20}}'.")
    return body


def refuse_shared_secrets(given: Mapping[str, Any], one: Endpoint, other: Endpoint) -> None:
    """A key or header named once for both endpoints must not travel to a second host. Raises EndpointConfigError."""
    if one.host == other.host:
        return
    for name in _SECRET:
        if given.get(name.replace("-", "_")):
            raise EndpointConfigError(
                f"--{name} would send one secret to two hosts ({one.host} and {other.host}). "
                f"Say which it is for: --stock-{name} or --candidate-{name}."
            )


def driver_options(command: F) -> F:
    """--workers, --ray, --http-backend: who sends the load, and how."""
    made = [
        click.option("--workers", type=click.IntRange(1), metavar="N", help="processes that share the lanes"),
        click.option("--ray", metavar="ADDRESS", help="workers on this Ray cluster's nodes (--workers: how many)"),
        click.option(
            "--http-backend",
            type=click.Choice(["socket", "httpx"]),
            default="socket",
            show_default=True,
            help="httpx: its own transport, for proxies and HTTP/2; less exact",
        ),
    ]
    return functools.reduce(lambda decorated, option: option(decorated), reversed(made), command)


def load_options(command: F) -> F:
    """--lanes, --requests, --max-tokens, --request-rate, --burst, --seed."""
    made = [
        click.option(
            "--lanes",
            "--max-concurrency",
            type=click.IntRange(1),
            help="lanes; with several profiles it sets those that would fill the KV cache (busy)",
        ),
        click.option("--requests", "--num-prompts", type=click.IntRange(1), help="requests a pass, in every profile"),
        click.option("--max-tokens", type=click.IntRange(1), help="longest reply"),
        click.option("--request-rate", type=click.FloatRange(0, min_open=True), help="arrivals a second (open loop)"),
        click.option("--burst", is_flag=True, help="all lanes start at once, not a millisecond apart"),
        click.option(
            "--seed", type=click.IntRange(0, MOST), default=0, show_default=True, help="seed of prompts and arrivals"
        ),
    ]
    return functools.reduce(lambda decorated, option: option(decorated), reversed(made), command)


def profiles_from(names: tuple[str, ...], given: Mapping[str, Any]) -> tuple[Profile, ...]:
    """The named profiles with the load options laid over them. Raises ProfileError."""
    loaded = [load(name) for name in names]
    twice = sorted({profile.name for profile in loaded if sum(p.name == profile.name for p in loaded) > 1})
    if twice:
        raise ProfileError(f"Profile {twice[0]} is named twice; passes are told apart by their profile's name.")
    return tuple(_laid_over(profile, given, alone=len(loaded) == 1) for profile in loaded)


def _laid_over(profile: Profile, given: Mapping[str, Any], alone: bool) -> Profile:
    changes = {name: given.get(name) for name in ("requests", "max_tokens", "request_rate")}
    if alone or profile.kv_share is not None:
        changes["lanes"] = given.get("lanes")
    if given.get("burst"):
        changes["start_spread_ms"] = 0.0
    return overridden(profile, changes)
