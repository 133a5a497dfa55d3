"""How a server is addressed and let in, what it may say of itself, and what is never shown of it."""

import base64
from collections.abc import AsyncIterator

import orjson
import pytest

from loadgen import discovery, endpoint, side
from loadgen.discovery import open_endpoint
from loadgen.endpoint import Endpoint, EndpointConfigError, EndpointError, Opened, headers_of, parse
from loadgen.side import side_post
from loadgen.telemetry import metrics_page
from loadgen.transport import SocketTransport
from playback import Script, answer, playing

MODELS = answer(200, orjson.dumps({"data": [{"id": "tide-1", "owned_by": "vllm"}]}))
NONE = answer(404, b"{}")
SLOW = Script([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", *[part for _ in range(20) for part in (b" ", 0.1)]])


@pytest.fixture
async def transport() -> AsyncIterator[SocketTransport]:
    made = SocketTransport()
    yield made
    await made.aclose()


async def opened(url: str, transport: SocketTransport) -> Opened:
    return await open_endpoint(Endpoint(url=url), transport)


async def test_credentials_of_a_url_travel_in_a_header_and_are_never_shown(transport: SocketTransport) -> None:
    """http://user:pass@host: every request carries them, timed ones too; no URL of ours holds them."""
    async with playing(MODELS, NONE) as server:
        found = await opened(server.url.replace("//", "//me:s%20cret@"), transport)
        await found.close()
    expected = b"Authorization: Basic " + base64.b64encode(b"me:s cret")

    assert all(expected in request for request in server.requests)
    assert found.target.headers["Authorization"].encode() == expected.removeprefix(b"Authorization: ")
    assert "cret" not in str(found.target.base) + str(found.endpoint.public())


@pytest.mark.parametrize(
    "script",
    [
        answer(401, b'{"error": {"message": "not you: me:s3cret, sesame"}}'),
        answer(302, b"", more="Location: http://elsewhere.example/?key=sesame\r\n"),
        answer(200, b"sesame"),
        answer(503, b"sesame"),
        Script([b"sesame\r\n"], then="close"),
    ],
    ids=["a wrong key", "a redirect", "no JSON", "not ready", "no HTTP"],
)
async def test_no_error_shows_what_lets_us_in(transport: SocketTransport, script: Script) -> None:
    """Neither the URL's credentials nor a header's value, though the server repeats them; one request, no redirect."""
    async with playing(script) as server:
        given = Endpoint(url=server.url.replace("//", "//me:s3cret@"), headers={"X-Key": "sesame"})
        with pytest.raises(EndpointError) as raised:
            await open_endpoint(given, transport)
        shown = str(raised.value)

    assert server.url.removeprefix("http://") in shown
    assert ("s3cret" in shown, "sesame" in shown) == (False, False)
    assert len(server.requests) <= 1


@pytest.mark.parametrize("url", ["ftp://me:s3cret@host", "http://me:s3cret@host:port", "http://me:s3cret@"])
def test_a_wrong_address_is_shown_without_its_credentials(url: str) -> None:
    """What was given is named, so that it can be mended; what lets one in is left out."""
    with pytest.raises(EndpointConfigError, match=r"no URL|no http://") as raised:
        parse(url)

    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("headers", [{"X-A": "s3crét"}, {"X-A": "s3cret\nX-B: 1"}, {"é": "s3cret"}, {"X A": "s3cret"}])
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(headers: dict[str, str]) -> None:
    """Before anything is sent; the value may be a secret."""
    with pytest.raises(EndpointConfigError, match="header") as raised:
        endpoint.validated({"url": "http://host", "headers": headers}, "mine.toml")

    assert "s3cr" not in str(raised.value)


@pytest.mark.parametrize("key", ["s3crét", "s3cret\nmore"])
def test_a_key_that_cannot_be_sent_is_refused_by_its_variable(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """The sentence names the variable, not the value."""
    monkeypatch.setenv("KEY", key)
    with pytest.raises(EndpointConfigError, match="KEY") as raised:
        headers_of(Endpoint(url="http://host", api_key_env="KEY"))

    assert "s3cr" not in str(raised.value)


@pytest.mark.parametrize(
    ("said", "length"), [(b'"2048"', None), (b"-5", None), (b"1" + 30 * b"0", None), (b"true", None), (b"2048", 2048)]
)
async def test_a_length_that_is_none_is_unknown(transport: SocketTransport, said: bytes, length: int | None) -> None:
    """A server's own figures are kept only where they are such: run.json must hold them."""
    models = answer(200, b'{"data": [{"id": "a", "owned_by": "vllm", "max_model_len": ' + said + b"}]}")
    async with playing(models, NONE) as server:
        found = await opened(server.url, transport)
        await found.close()

    assert found.served.max_model_len == length


@pytest.mark.parametrize(
    ("owner", "dialect"),
    [("vllm", "vllm"), ("loadgate-sim", "vllm"), ("sglang", "sglang"), ("llamacpp", "llamacpp"), ("me", "openai")],
)
async def test_the_dialect_is_told_by_who_owns_the_models(transport: SocketTransport, owner: str, dialect: str) -> None:
    """Engines put their own names there; whoever is unknown is held to the plain standard."""
    async with playing(answer(200, orjson.dumps({"data": [{"id": "a", "owned_by": owner}]})), NONE) as server:
        found = await opened(server.url, transport)
        await found.close()

    assert dialect == found.target.dialect.NAME


@pytest.mark.parametrize("owner", ["ollama", "sglang", "llamacpp"])
async def test_a_server_may_know_a_model_by_more_names_than_it_lists(transport: SocketTransport, owner: str) -> None:
    """The first request will tell; only vLLM's list is known to be all it answers to."""
    models = answer(200, orjson.dumps({"data": [{"id": "a:latest", "owned_by": owner}]}))
    async with playing(models, NONE) as server:
        found = await open_endpoint(Endpoint(url=server.url, model="a"), transport)
        await found.close()
    async with playing(MODELS, NONE) as server:
        with pytest.raises(EndpointError, match=r'has no model "a"\. It serves: tide-1'):
            await open_endpoint(Endpoint(url=server.url, model="a"), transport)

    assert found.target.model == "a"


async def test_side_requests_follow_no_redirect(transport: SocketTransport) -> None:
    """Another host would get the key: pages and scores there are none, and nothing is asked of it."""
    async with playing(NONE) as elsewhere:
        away = answer(307, b"", more=f"Location: {elsewhere.url}/metrics\r\n")
        async with playing(MODELS, away) as server:
            found = await open_endpoint(Endpoint(url=server.url, headers={"X-Key": "sesame"}), transport)
            page = await metrics_page(found)
            scores = await side_post(found, found.target.method_url("scores"), {})
            await found.close()

    assert (page, scores.status, elsewhere.requests) == (None, 307, [])


async def test_a_name_that_no_file_can_hold_is_no_answer(transport: SocketTransport) -> None:
    """Half a surrogate pair in a model's name is no JSON that others can read."""
    async with playing(answer(200, b'{"data": [{"id": "a\\ud800"}]}')) as server:
        with pytest.raises(EndpointError, match="not as an OpenAI-compatible server"):
            await opened(server.url, transport)


async def test_names_of_models_draw_nothing_on_the_terminal(transport: SocketTransport) -> None:
    """They are shown on one line, without control characters."""
    async with playing(answer(200, b'{"data": [{"id": "a\\u001b[31m\\nb"}, {"id": "c"}]}')) as server:
        with pytest.raises(EndpointError, match="a \\[31m b, c") as raised:
            await opened(server.url, transport)

    assert "\x1b" not in str(raised.value)


async def test_a_page_that_drips_or_never_ends_is_none(
    transport: SocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read comes in time, the whole never: a pass must not wait for it."""
    monkeypatch.setattr(side, "_PAGE_S", 0.3)
    monkeypatch.setattr(side, "_PAGE_BYTES", 1000)
    async with playing(MODELS, SLOW, SLOW, answer(200, b"x" * 2000)) as server:
        found = await opened(server.url, transport)
        pages = [await metrics_page(found), await metrics_page(found)]
        await found.close()

    assert (found.served.version, pages) == (None, [None, None])


async def test_a_model_list_that_drips_is_said_to(transport: SocketTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 4 with the time that it was given."""
    monkeypatch.setattr(discovery, "_LISTED_WITHIN_S", 0.3)
    async with playing(SLOW) as server:
        with pytest.raises(EndpointError, match=r"not done within 0\.3 s"):
            await opened(server.url, transport)
