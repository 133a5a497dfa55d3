"""Whether a request succeeded, and if not, why: by status, error body and stream. One rule for all."""

import dataclasses
import re
import zlib
from typing import Any

import orjson

from loadgen.credentials import without_secrets
from loadgen.endpoint import Target
from loadgen.record import Failure, FailureKind
from loadgen.reply import Reply
from loadgen.transcript import Transcript, decoder

Broke = tuple[FailureKind, str]
"""How the connection failed, and in whose words."""


_OF_STATUS: dict[int, FailureKind] = {401: "auth", 403: "auth", 429: "rate_limited", 503: "loading"}

_CONTEXT = re.compile(r"context|too long|too many tokens|input_tokens|max_model_len", re.IGNORECASE)
_BUSY = re.compile(r"busy|queue|overload|capacity|too many", re.IGNORECASE)
_SAYING = ("error", "message", "detail", "msg")
_MOST_DETAIL = 300


def of(reply: Reply, transcript: Transcript, broke: Broke | None, target: Target) -> Failure | None:
    """The one rule of success: status 200, an event stream without an error, tokens, and its end.

    The detail is on one line, without control characters and without what lets us in, cut short.
    """
    failure = _of(reply, transcript, broke, target.model)
    if failure is None:
        return None
    shown = "".join(char if char.isprintable() else " " for char in without_secrets(failure.detail, target.headers))
    return dataclasses.replace(failure, detail=" ".join(shown.split())[:_MOST_DETAIL])


def _of(reply: Reply, transcript: Transcript, broke: Broke | None, model: str) -> Failure | None:
    if broke is not None and broke[0] == "cancelled":
        return _failed(*broke, reply)
    if reply.status is not None and reply.status != 200:
        return _of_status(reply, model)
    if reply.status is not None and not is_stream(reply):
        return _failed(*broke, reply) if broke is not None else _of_body(reply)
    if transcript.error is not None:
        message, code = transcript.error
        return _failed("error_event", message if code is None else f"{message} ({code})", reply)
    if broke is not None and not transcript.complete:
        return _failed(*broke, reply)
    return _of_stream(reply, transcript)


def _of_stream(reply: Reply, transcript: Transcript) -> Failure | None:
    """A stream that came to its end: did it say everything?"""
    tokens = transcript.completion_tokens
    if transcript.malformed is not None:
        return _failed("malformed", transcript.malformed, reply)
    if transcript.finish_reason in ("abort", "error"):
        kind: FailureKind = "aborted" if transcript.finish_reason == "abort" else "error_event"
        return _failed(kind, f"finish_reason {transcript.finish_reason}", reply)
    said_end = transcript.finish_reason is not None or (transcript.done_ns is not None and bool(tokens))
    if not transcript.chunk_ns and not tokens and (said_end or transcript.done_ns or transcript.last_event_ns is None):
        return _failed("empty", "the answer holds no token", reply)
    if not said_end:
        return _failed("truncated", "the stream ended without finish_reason", reply)
    return None


def is_stream(reply: Reply) -> bool:
    """By its content type. Without one it gets the benefit of the doubt."""
    kind = reply.header(b"content-type")
    return kind is None or kind.split(b";")[0].strip().lower() == b"text/event-stream"


def _of_status(reply: Reply, model: str) -> Failure:
    status = reply.status
    assert status is not None, "the caller looked"
    message, hints = _message(_body(reply))
    if 300 <= status < 400:
        message = f"redirects to {(reply.header(b'location') or b'?').decode('latin-1')}; timed requests follow none"
    kind = _OF_STATUS.get(status, "http_status")
    if status in (400, 413, 422) and _CONTEXT.search(hints):
        kind = "context_too_long"
    elif status == 404 and ("model" in hints.lower() or model in hints):
        kind = "model_not_found"
    elif status == 503 and _BUSY.search(hints):
        kind = "rate_limited"
    return _failed(kind, message, reply)


def _of_body(reply: Reply) -> Failure:
    """Status 200, but no event stream."""
    content = _body(reply)
    message, _ = _message(content)
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        answer = None
    if isinstance(answer, dict) and (answer.get("error") or answer.get("object") == "error"):
        inner = answer.get("error")
        code = inner.get("code") if isinstance(inner, dict) else answer.get("code")
        return _failed("error_body", message if code is None else f"{message} ({code})", reply)
    kind = (reply.header(b"content-type") or b"").decode("latin-1")
    return _failed("not_a_stream", f"the answer is {kind}, no event stream: {message}", reply)


def _body(reply: Reply) -> bytes:
    content = b"".join(piece for _, piece in reply.reads)
    decode = decoder(reply.header(b"content-encoding"))
    try:
        return content if decode is None else decode(content)
    except zlib.error:
        return content


def _message(content: bytes) -> tuple[str, str]:
    """(the server's sentence, everything it said that may tell the kind), whatever the shape of the error body."""
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        text = content[:4096].decode("utf-8", "replace")
        return text, text
    return _sentence(answer), orjson.dumps(answer).decode()


def _sentence(answer: Any) -> str:
    """error.message, message, error, or detail (FastAPI's list has one object a mistake)."""
    while isinstance(answer, dict):
        inner = next((answer[key] for key in _SAYING if answer.get(key)), None)
        if inner is None:
            break
        answer = inner
    if isinstance(answer, list) and answer and all(isinstance(item, dict) for item in answer):
        return "; ".join(str(next((item[key] for key in _SAYING if item.get(key)), item)) for item in answer)
    return answer if isinstance(answer, str) else orjson.dumps(answer).decode()


def _failed(kind: FailureKind, detail: str, reply: Reply) -> Failure:
    return Failure(kind=kind, detail=detail, status=reply.status)
