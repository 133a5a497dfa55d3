"""Log-probabilities as answers carry them: of the model's own rows, whatever the sampling settings (raw_logprobs)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from servers.sim import tokenizer
from servers.sim.model import Model
from servers.sim.tokenizer import SAMPLED

_NEVER = -9999.0  # vLLM's stand-in for minus infinity, which JSON has not


class Scores:
    """Reads the model's table, and keeps each row's likeliest tokens ready as JSON: scoring is mostly joining bytes."""

    def __init__(self, model: Model) -> None:
        self._model = model
        _ = model.order  # sorted before the first request, not during it
        self._tops: dict[int, list[tuple[int, float]]] = {}
        self._entries: dict[int, dict[int, bytes]] = {}

    def rows(self, tokens: Sequence[int]) -> list[int]:
        """One row a token: that of the context before it."""
        return self._model.rows(tokens)

    def logprob(self, row: int, token: int) -> float:
        """To seven digits, as single precision has them; −9999 for ids that are never sampled."""
        return float(f"{self._model.logprobs[row, token]:.7g}") if token < SAMPLED else _NEVER

    def top(self, row: int) -> list[tuple[int, float]]:
        """(id, log-probability) of the row's likeliest tokens, log-probability falling, then id rising."""
        top = self._tops.get(row)
        if top is None:
            ids = self._model.order[row].tolist()
            top = self._tops[row] = [(token, self.logprob(row, token)) for token in ids]
        return top

    def alternatives(self, row: int, token: int, count: int) -> dict[int, float]:
        """The token itself first, then the `count` likeliest of its position."""
        return {token: self.logprob(row, token)} | dict(self.top(row)[:count])

    def completion(self, tokens: Sequence[int], rows: Sequence[int | None], asked: "LogprobForm") -> dict[str, Any]:
        """The completions route's `logprobs`. A row of None marks the first prompt token, which has no law."""
        names = [asked.name(token) for token in tokens]
        given = [
            None if row is None else self.alternatives(row, token, asked.count)
            for token, row in zip(tokens, rows, strict=True)
        ]
        return {
            "text_offset": asked.offsets(names),
            "token_logprobs": [None if law is None else law[token] for token, law in zip(tokens, given, strict=True)],
            "tokens": names,
            "top_logprobs": [law and {asked.name(token): value for token, value in law.items()} for law in given],
        }

    def chat(self, tokens: Sequence[int], rows: Sequence[int], asked: "LogprobForm") -> dict[str, Any]:
        """The chat route's `logprobs`."""
        return {
            "content": [
                {
                    **asked.entry(token, self.logprob(row, token)),
                    "top_logprobs": [asked.entry(*pair) for pair in self.top(row)[: asked.count]],
                }
                for token, row in zip(tokens, rows, strict=True)
            ]
        }

    def prompt(self, tokens: Sequence[int], count: int) -> orjson.Fragment:
        """`prompt_logprobs`: null, then for each further token its own entry and the `count` likeliest."""
        rows = self.rows(tokens)
        positions = (self._position(row, token, count) for row, token in zip(rows[1:], tokens[1:], strict=True))
        return orjson.Fragment(b"[" + b",".join([b"null", *positions]) + b"]")

    def _position(self, row: int, token: int, count: int) -> bytes:
        entries = self._entries.get(row)
        if entries is None:
            ranked = enumerate(self.top(row), 1)
            entries = self._entries[row] = {other: _entry(other, value, rank) for rank, (other, value) in ranked}
        own = entries.get(token) or _entry(token, self.logprob(row, token), self._rank(row, token))
        likeliest = list(entries.values())[:count]
        if own in likeliest:
            likeliest.remove(own)
        return b"{" + b",".join([own, *likeliest]) + b"}"

    def _rank(self, row: int, token: int) -> int:
        if token >= SAMPLED:
            return SAMPLED + 1
        law = self._model.target[row]
        return int(np.count_nonzero(law > law[token])) + 1


class LogprobForm:
    """How a request wants log-probabilities: alternatives a position, ids for names, and where the text stands."""

    def __init__(self, count: int, tokens_as_ids: bool) -> None:
        self.count = count
        self._as_ids = tokens_as_ids
        self._offset = 0

    def name(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else tokenizer.as_text(token)

    def offsets(self, names: list[str]) -> list[int]:
        """Where each name begins in all the names so far: like vLLM's, not always a place in the text."""
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        return offsets

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.name(token), "logprob": logprob, "bytes": list(tokenizer.as_bytes(token))}


def _entry(token: int, logprob: float, rank: int) -> bytes:
    shown = {"logprob": logprob, "rank": rank, "decoded_token": tokenizer.as_text(token)}
    return b'"%d":%b' % (token, orjson.dumps(shown))
