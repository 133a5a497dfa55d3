"""Cases of servers' answers: tests/cases/*.toml → what is asked, the bytes that are played, what is right.

A file holds `[[case]]` tables:

  id, why, dialect ("openai"), method ("chat"), asked, prompt, model, extra_body, idle_s
  open: where two readings are defensible, the other one, and why it is not ours
  [[case.answer]], one a request, in order, of
    status, version, headers, type (the content's), framing ("chunked", "length", "close", or "none": no head either),
    line_end, gzip, then (playback's), expect, and body = "…" or stream = […] of
      N               milliseconds to the next write; what stands between two numbers is one write
      "[DONE]", "{…}" an event of that data; any other text goes out as it is
      {…}             an event of the method: role, say, reason, tools, ids, prompt_ids, finish,
                      usage = [prompt, completion], with = "{…}" (more of the choice), beside = "{…}" (of the event),
                      long = N (so many tokens, with 20 alternatives each); or raw = "…" (bytes), or
                      lines = ["…"] (one event of several data lines);
                      cut = [N, "é"]: sent in pieces, cut at byte N, and behind every byte of a character
"""

import itertools
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from playback import LAST, Script, chunk

CASES = Path(__file__).parent / "cases"
_CUT_S = 0.02
_NULLS = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}  # as SGLang fills a delta


@dataclass(frozen=True)
class Answer:
    script: Script
    head: int  # parts of the script before the first write: one, or none
    writes: int
    expect: dict[str, Any]


@dataclass(frozen=True)
class Case:
    id: str
    why: str
    answers: list[Answer]
    dialect: str = "openai"
    method: str = "chat"
    asked: dict[str, Any] = field(default_factory=lambda: {"max_tokens": 32, "temperature": 0})
    prompt: Any = "Say something short."
    model: str = "pebble"
    extra_body: dict[str, Any] = field(default_factory=dict)
    idle_s: float = 5.0
    open: str | None = None


def tables(family: str) -> list[dict[str, Any]]:
    """The `[[case]]` tables of tests/cases/FAMILY.toml as they are."""
    found: list[dict[str, Any]] = tomllib.loads((CASES / f"{family}.toml").read_text("utf-8"))["case"]
    return found


def load(family: str) -> list[Case]:
    """The cases of a family of answers to a request for a reply."""
    return [_case(given) for given in tables(family)]


def _case(given: dict[str, Any]) -> Case:
    dialect, method = given.get("dialect", "openai"), given.get("method", "chat")
    answers = [_answer(answer, dialect, method) for answer in given.pop("answer")]
    return Case(answers=answers, **given)


def _answer(given: dict[str, Any], dialect: str, method: str) -> Answer:
    line_end = given.get("line_end", "\n").encode()
    pack = _gzip() if given.get("gzip") else bytes
    if "body" in given:
        writes = [(0.0, given["body"].encode())]
    else:
        writes = _writes(given["stream"], lambda item: pack(_bytes(item, dialect, method, line_end)))
    framing = given.get("framing", "length" if "body" in given else "chunked")
    parts: list[bytes | float] = [_head(given, framing, sum(len(data) for _, data in writes))]
    for pause, data in writes:
        parts += [pause, chunk(data) if framing == "chunked" else data]
    then = given.get("then", "keep" if framing in ("chunked", "length") else "close")
    if framing == "chunked" and then in ("keep", "close"):
        parts.append(LAST)
    head = framing != "none"
    return Answer(Script(parts if head else parts[1:], then), int(head), len(writes), given.get("expect", {}))


def _head(given: dict[str, Any], framing: str, length: int) -> bytes:
    kind = given.get("type", "application/json" if "body" in given else "text/event-stream; charset=utf-8")
    headers = {"Content-Type": kind, **given.get("headers", {})}
    if framing == "chunked":
        headers["Transfer-Encoding"] = "chunked"
    if framing == "length":
        headers.setdefault("Content-Length", str(length))
    if given.get("gzip"):
        headers["Content-Encoding"] = "gzip"
    lines = [f"HTTP/{given.get('version', '1.1')} {given.get('status', 200)} Said"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


def _gzip() -> Callable[[bytes], bytes]:
    """One member, flushed behind every event: what a proxy does that compresses streams."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return lambda data: packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


def _writes(items: list[Any], render: Callable[[Any], bytes]) -> list[tuple[float, bytes]]:
    """(seconds before it, bytes) for every write."""
    made: list[tuple[float, bytes]] = []
    for item in items:
        if isinstance(item, int | float):
            made.append((item / 1000, b""))
            continue
        made = made or [(0.0, b"")]
        first, *others = _pieces(render(item), item.get("cut", []) if isinstance(item, dict) else [])
        made[-1] = (made[-1][0], made[-1][1] + first)
        made += [(_CUT_S, piece) for piece in others]
    return made


def _pieces(data: bytes, cuts: Iterable[int | str]) -> list[bytes]:
    places = [place % len(data) for cut in cuts for place in _places(data, cut)]
    return [data[start:end] for start, end in itertools.pairwise([0, *sorted(places), len(data)])]


def _places(data: bytes, cut: int | str) -> Iterator[int]:
    if isinstance(cut, int):
        yield cut
    else:
        start = data.index(cut.encode())
        yield from range(start + 1, start + len(cut.encode()))


def _bytes(item: Any, dialect: str, method: str, line_end: bytes) -> bytes:
    if isinstance(item, str):
        return _event([item], line_end) if item.startswith(("{", "[DONE]")) else item.encode()
    if "raw" in item:
        return bytes(item["raw"].encode())
    return _event(item.get("lines") or [orjson.dumps(_body(item, dialect, method)).decode()], line_end)


def _event(lines: list[str], line_end: bytes) -> bytes:
    return b"".join(b"data: " + line.encode() + line_end for line in lines) + line_end


def _body(item: dict[str, Any], dialect: str, method: str) -> dict[str, Any]:
    body: dict[str, Any] = {"id": "stone-1", "created": 1800000000, "model": "pebble", "choices": []}
    if dialect == "sglang":
        body["usage"] = None
    if "usage" in item:
        prompt, completion = item["usage"]
        body["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if item.keys() - {"usage", "beside"}:
        body["choices"] = [_choice(item, dialect, method)]
    if method == "chat" and "prompt_ids" in item:
        body["prompt_token_ids"] = item["prompt_ids"]
    body |= orjson.loads(item.get("beside", "{}"))
    return body


def _choice(item: dict[str, Any], dialect: str, method: str) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": item.get("finish")}
    if method == "chat":
        choice["delta"] = _delta(item, dialect)
    else:
        choice["text"] = item.get("say", "")
        if "prompt_ids" in item:
            choice["prompt_token_ids"] = item["prompt_ids"]
    if "ids" in item:
        choice["token_ids"] = item["ids"]
    if dialect == "sglang":
        choice["matched_stop"] = None
    if "long" in item:
        choice["delta"]["content"], choice["logprobs"] = _long(item["long"])
    choice |= orjson.loads(item.get("with", "{}"))
    return choice


def _delta(item: dict[str, Any], dialect: str) -> dict[str, Any]:
    delta: dict[str, Any] = dict(_NULLS) if dialect == "sglang" else {}
    if item.get("role"):
        delta |= {"role": "assistant", "content": ""}
    if "say" in item:
        delta["content"] = item["say"]
    if "reason" in item:
        delta["reasoning_content" if dialect == "sglang" else "reasoning"] = item["reason"]
    if "tools" in item:
        delta["tool_calls"] = orjson.loads(item["tools"])
    return delta


def _long(tokens: int) -> tuple[str, dict[str, Any]]:
    words = [f" word{number}" for number in range(tokens)]
    tops = [{"token": f" other{rank}", "logprob": -0.5 * rank, "bytes": [1] * 12} for rank in range(1, 20)]
    entries = [
        {"token": word, "logprob": -0.25, "top_logprobs": [{"token": word, "logprob": -0.25}, *tops]} for word in words
    ]
    return "".join(words), {"content": entries}
