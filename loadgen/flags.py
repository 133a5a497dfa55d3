"""What a careful reader should know of a reply besides its outcome."""

import datetime
import email.utils
from collections.abc import Iterator

from loadgen.record import Asked
from loadgen.reply import Reply
from loadgen.transcript import Transcript

_MOST_DIGITS = 9  # of Retry-After; what is longer is no time that anybody waits


def of(asked: Asked, reply: Reply, transcript: Transcript) -> list[str]:
    waiting = [f"retry_after_{when}"] if (when := _retry_after(reply)) else []
    return [*waiting, *(_of_stream(asked, reply, transcript) if transcript.last_event_ns is not None else ())]


def _of_stream(asked: Asked, reply: Reply, transcript: Transcript) -> Iterator[str]:
    usage, ids, tokens = transcript.usage, transcript.token_ids, transcript.completion_tokens
    counted = usage.completion_tokens if usage else None
    reasoned = usage.reasoning_tokens if usage else None
    ended = transcript.finish_reason is not None
    facts = {
        "usage_disagrees_with_ids": ids is not None and counted is not None and len(ids) != counted,
        "token_ids_incomplete": ids is not None and transcript.ids_missing,
        "no_finish_reason": not ended,
        "no_done": ended and transcript.done_ns is None,
        "cut_last_event": transcript.cut_last_event,
        "connection_cut_after_done": transcript.complete and not reply.whole,
        "tokens_without_text": not transcript.chunk_ns and bool(tokens),
        "short_under_ignore_eos": bool(asked.get("ignore_eos")) and ended and _short(tokens, asked),
        # Engines that speculate count what they drafted beyond the end: never subtract one from the other.
        "reasoning_tokens_exceed_completion_tokens": reasoned is not None
        and counted is not None
        and reasoned > counted,
        "logprobs_incomplete": _asked_alternatives(asked) is not None and _unscored(transcript, tokens),
        "top_logprobs_incomplete": _listed_too_few(asked, transcript),
    }
    return (name for name, holds in facts.items() if holds)


def _short(tokens: int | None, asked: Asked) -> bool:
    return tokens is not None and tokens != asked.get("max_tokens")


def _asked_alternatives(asked: Asked) -> int | None:
    """How many a token; None where no log-probabilities were asked for."""
    asked_for = asked.get("top_logprobs") if asked.get("logprobs") is True else asked.get("logprobs")
    return asked_for if type(asked_for) is int else None


def _unscored(transcript: Transcript, tokens: int | None) -> bool:
    """Some tokens have no value: which ones, positions in the list do not tell."""
    values = [one.logprob for one in transcript.logprobs or []]
    return None in values or (tokens is not None and len(values) != tokens)


def _listed_too_few(asked: Asked, transcript: Transcript) -> bool:
    """As where alternatives are keyed by their text, and two read alike: what is listed adds up to too little."""
    wanted = _asked_alternatives(asked) or 0
    return any(len(one.top) < wanted for one in transcript.logprobs or [])


def _retry_after(reply: Reply) -> str | None:
    """`s:7`, or `at:2030-01-02T03:04:05Z`: what the server asks of clients that try again. This one never does."""
    value = (reply.header(b"retry-after") or b"").decode("latin-1").strip()
    if value.isascii() and value.isdecimal():
        return f"s:{int(value)}" if len(value) <= _MOST_DIGITS else None
    try:
        moment = email.utils.parsedate_to_datetime(value).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
    return f"at:{moment:%Y-%m-%dT%H:%M:%SZ}"
