"""The bytes of answers: events of a stream and whole bodies, in vLLM's shapes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from servers.sim import faults, tokenizer
from servers.sim.protocol import Asked
from servers.sim.scores import LogprobForm, Scores
from servers.sim.sequence import Emission

DONE = b"data: [DONE]\n\n"


class Reply:
    """One request's answer: its identity, and how its tokens are shown."""

    def __init__(
        self, asked: Asked, scores: Scores, answer_id: str, created: int, model: str, fault: str | None = None
    ) -> None:
        self.asked = asked
        self._fault = fault
        self.id, self.created, self.model = answer_id, created, model
        self._scores = scores
        self._form = None if asked.logprobs is None else LogprobForm(asked.logprobs, asked.tokens_as_ids)

    @property
    def bundles(self) -> bool:
        return self._fault == "bundled"

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def logprobs(self, tokens: Sequence[int], rows: Sequence[int], after_prompt: bool = False) -> dict[str, Any] | None:
        """None where not asked for; with after_prompt the prompt's tokens come first (echo)."""
        if self._form is None:
            return None
        if self.asked.chat:
            return self._scores.chat(tokens, rows, self._form)
        if not after_prompt:
            return self._scores.completion(tokens, rows, self._form)
        prompt = self.asked.job.prompt
        prompt_rows = self._scores.rows(prompt)
        return self._scores.completion([*prompt, *tokens], [None, *prompt_rows[1:], *rows], self._form)

    def prompt_logprobs(self) -> orjson.Fragment | None:
        count = self.asked.prompt_logprobs
        return None if count is None else self._scores.prompt(self.asked.job.prompt, count)

    def usage(self, tokens: int) -> dict[str, int]:
        prompt = len(self.asked.job.prompt)
        if self._fault == "usage":
            tokens = round(faults.USAGE * tokens)
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}

    def tail(self, tokens: int) -> bytes:
        """What follows the last chunk: usage where asked for, and the end mark."""
        if not self.asked.include_usage:
            return DONE
        return event({**self.head(_kind(self.asked)), "choices": [], "usage": self.usage(tokens)}) + DONE


def chunks(reply: Reply) -> Callable[[Emission], bytes]:
    """The function that makes of each emission of a stream the bytes to send; of the last one the tail as well."""
    asked = reply.asked
    choice = _chat_choice if asked.chat else _completion_choice
    # What stands before the choice is the same in every event: made once.
    before = b"data: " + orjson.dumps(reply.head(_kind(asked)))[:-1] + b',"choices":['
    first = True

    def chunk(emission: Emission) -> bytes:
        nonlocal first
        opening = _chat_opening(reply) if first and asked.chat else b""
        sent = opening + before + orjson.dumps(choice(reply, emission, first)) + b"]}\n\n"
        first = False
        return sent if emission.finish_reason is None else sent + reply.tail(len(emission.sequence.tokens))

    return bundled(chunk, faults.BUNDLED) if reply.bundles else chunk


def bundled(chunk: Callable[[Emission], bytes], steps: int) -> Callable[[Emission], bytes]:
    """Nothing for the steps held back, then one chunk for all of them."""
    held: list[Emission] = []

    def hold(emission: Emission) -> bytes:
        held.append(emission)
        if len(held) < steps and emission.finish_reason is None:
            return b""
        sent = chunk(_joined(held))
        held.clear()
        return sent

    return hold


def _joined(emissions: Sequence[Emission]) -> Emission:
    """Several steps' tokens as if one had brought them."""
    return replace(
        emissions[-1],
        tokens=[token for emission in emissions for token in emission.tokens],
        rows=[row for emission in emissions for row in emission.rows],
        text="".join(emission.text for emission in emissions),
    )


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _kind(asked: Asked) -> str:
    return "chat.completion.chunk" if asked.chat else "text_completion"


def _completion_choice(reply: Reply, emission: Emission, first: bool) -> dict[str, Any]:
    asked = reply.asked
    echoed = first and asked.echo
    choice = {
        "index": 0,
        "text": tokenizer.decode(asked.job.prompt) + emission.text if echoed else emission.text,
        "logprobs": reply.logprobs(emission.tokens, emission.rows, after_prompt=echoed),
        "finish_reason": emission.finish_reason,
        "stop_reason": emission.stop_reason,
    }
    if asked.return_token_ids and first:
        choice["prompt_token_ids"] = asked.job.prompt
    if asked.return_token_ids:
        choice["token_ids"] = emission.tokens
    return choice


def _chat_opening(reply: Reply) -> bytes:
    """The chunk that says who speaks; it carries no token, and comes together with the first that does."""
    delta = {"role": "assistant", "content": ""}
    body = {**reply.head("chat.completion.chunk"), "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    if reply.asked.return_token_ids:
        body["prompt_token_ids"] = reply.asked.job.prompt
    return event(body)


def _chat_choice(reply: Reply, emission: Emission, first: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "delta": {"content": emission.text},
        "logprobs": reply.logprobs(emission.tokens, emission.rows),
        "finish_reason": emission.finish_reason,
    }
    if emission.finish_reason is not None:
        choice["stop_reason"] = emission.stop_reason
    if reply.asked.return_token_ids:
        choice["token_ids"] = emission.tokens
    return choice


def whole(reply: Reply, emissions: Sequence[Emission]) -> bytes:
    """The body of an answer that is not streamed: its emissions as if they were one."""
    joined = _joined(emissions)
    body = _whole_chat(reply, joined) if reply.asked.chat else _whole_completion(reply, joined)
    return orjson.dumps({**body, "usage": reply.usage(len(joined.tokens))})


def _whole_completion(reply: Reply, joined: Emission) -> dict[str, Any]:
    choice = _completion_choice(reply, joined, first=True) | {"prompt_logprobs": reply.prompt_logprobs()}
    return {**reply.head("text_completion"), "choices": [choice]}


def _whole_chat(reply: Reply, joined: Emission) -> dict[str, Any]:
    choice = _chat_choice(reply, joined, first=True)
    choice["message"] = {"role": "assistant", **choice.pop("delta")}
    body = {**reply.head("chat.completion"), "choices": [choice], "prompt_logprobs": reply.prompt_logprobs()}
    return body | ({"prompt_token_ids": reply.asked.job.prompt} if reply.asked.return_token_ids else {})
