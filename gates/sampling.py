"""Sampling settings: the law that a server draws from, where the reference's listed log-probabilities tell it.

With top_k no larger than the list, everything that can be drawn is listed, and the law is known exactly. vLLM (and the
embedded engine) divides logits by the temperature, drops what is under min_p of the likeliest, keeps the top_k
likeliest with all that tie with the last of them, and then the fewest that hold top_p of what is left
(vllm/v1/sample/sampler.py, ops/topk_topp_sampler.py of 0.32). llama.cpp cuts first (top_k, top_p, min_p) and divides
last. Without top_k the sum over the tokens that are not listed is missing.

Where the cut falls, two servers with one model may differ by the last bit of a logit. A token so near it is counted as
the likeliest of those that are surely drawn least often, on either side of the cut: a coarser outcome, fixed by the
reference alone, whose chance such a bit hardly moves. What lies clearly beyond the cut has no chance, and is `other`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gates.residuals import TIED_NAT, Cells, Floats
from gates.scored import LEAST_LOGPROB, Ints
from loadgen.record import SCORED_TOP_K

NEUTRAL = {
    "temperature": 1,
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "ignore_eos": False,
}
"""The sampling under which the reference's log-probabilities are those that a lossless server samples from."""

EDGE_NAT = 0.125
"""A step of bf16 logits between 16 and 32: so near the cut of top_k or min_p, which side a token is on is chance."""

EDGE_MASS = 0.005
"""The same for top_p, in mass before the token: what such a step moves it by."""

_GREEDY_BELOW = 1e-5  # vLLM's bound
_KNOWN = ("temperature", "top_p", "top_k", "min_p")
_CUTS_FIRST = {"vllm": False, "llamacpp": True}
"""dialect → whether its servers truncate before they divide by the temperature. SGLang measures top_p by the mass of
all tokens, which is not listed; of a server that is only known to speak the standard nothing is known."""


@dataclass(frozen=True, slots=True)
class Law:
    """What is drawn from. top_k: 1 … SCORED_TOP_K; top_p 1 and min_p 0 are off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    cuts_first: bool  # and divides by the temperature last

    def __call__(self, block: Cells, own: Floats) -> Cells:
        """The outcome space under this law. block: under the reference's own; own: (n,) log p of the drawn tokens."""
        raw = block.logp
        kept = self._inside(raw, TIED_NAT, 0)
        logp = np.where(kept, raw - raw[:, :1], -np.inf) / self.temperature
        logp -= np.log(np.exp(logp).sum(axis=1, keepdims=True))
        p = np.where(logp > LEAST_LOGPROB, np.exp(logp), 0)
        last = self._inside(raw, -EDGE_NAT, -EDGE_MASS).sum(axis=1) - 1
        rows = np.arange(len(raw))
        beyond = np.arange(raw.shape[1]) > last[:, None]
        p[rows, last] += np.where(beyond, p, 0).sum(axis=1)
        p[beyond] = 0
        return _in_order(p, self._drawn(block, own, last), block.ids)

    def _drawn(self, block: Cells, own: Floats, last: Ints) -> Ints:
        """Each token's cell; what is near the cut counts as the last sure one, what lies beyond as `other`."""
        k = block.p.shape[1]
        own = np.where(np.isnan(own), block.logp[:, -1], own)  # not told, and so at most as likely as the last listed
        near = self._inside(block.logp, EDGE_NAT, EDGE_MASS).sum(axis=1)
        listed_near = (block.cell > last) & (block.cell < near)
        # With top_k as long as the list, tokens that tie with its end are not listed, but their own figure is known.
        unlisted_near = (block.cell == k) & (self.top_p == 1) & (own >= self._least(block.logp, EDGE_NAT)[:, 0])
        return np.where(block.cell <= last, block.cell, np.where(listed_near | unlisted_near, last, k))

    def _inside(self, raw: Floats, nat: float, mass: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(n, k): the likeliest, as far as they pass every cut that is moved by so much; at least the first."""
        kept = (raw >= self._least(raw, nat)) & (raw > -np.inf)
        if self.top_p < 1:
            kept &= self._before(raw) < self.top_p + mass
        kept[:, 0] = True
        return kept

    def _least(self, raw: Floats, nat: float) -> Floats:
        """(n, 1): the least log p that top_k and min_p leave, moved down by `nat`."""
        # A token is surely inside when it is far above the first one outside, not when it is far above the last inside.
        first_outside = nat < 0 and self.top_k < raw.shape[1]
        least = raw[:, self.top_k :][:, :1] if first_outside else raw[:, self.top_k - 1 :][:, :1]
        return np.maximum(least, self._least_by_min_p(raw)) - nat

    def _least_by_min_p(self, raw: Floats) -> Floats:
        return raw[:, :1] + (math.log(self.min_p) * self._cut_at if self.min_p > 0 else -math.inf)

    def _before(self, raw: Floats) -> Floats:
        """(n, k): the mass of what is likelier, of all that top_p is applied to."""
        there = raw >= raw[:, self.top_k - 1 :][:, :1] - TIED_NAT
        if not self.cuts_first:
            there &= raw >= self._least_by_min_p(raw) - TIED_NAT
        mass = np.where(there, np.exp((raw - raw[:, :1]) / self._cut_at), 0)
        mass /= mass.sum(axis=1, keepdims=True)
        return np.asarray(np.cumsum(mass, axis=1) - mass, np.float64)

    @property
    def _cut_at(self) -> float:
        """The temperature at which the cuts are made."""
        return 1.0 if self.cuts_first else self.temperature


def _in_order(p: Floats, cell: Ints, ids: np.ndarray[Any, np.dtype[np.int32]]) -> Cells:
    """What was added to the last cell may have made it likelier than those before it."""
    wrong = np.flatnonzero((p[:, :-1] < p[:, 1:]).any(axis=1))
    if len(wrong):
        order = np.argsort(-p[wrong], axis=1, kind="stable")
        p[wrong], ids = np.take_along_axis(p[wrong], order, axis=1), ids.copy()
        ids[wrong] = np.take_along_axis(ids[wrong], order, axis=1)
        moved = (order == cell[wrong][:, None]).argmax(axis=1)
        cell[wrong] = np.where(cell[wrong] < p.shape[1], moved, cell[wrong])
    cell = np.where(_mass(p, cell) > 0, cell, p.shape[1])
    logp = np.log(p, out=np.full(p.shape, -np.inf), where=p > 0)
    return Cells(logp, p, np.maximum(1 - p.sum(axis=1), 0), cell, ids)


def _mass(p: Floats, cell: Ints) -> Floats:
    k = p.shape[1]
    return np.where(cell < k, p[np.arange(len(p)), np.minimum(cell, k - 1)], 0)


def law(asked: Mapping[str, Any], dialect: str) -> Law | None:
    """None where the reference's own law is what is drawn from, and where why_unknown has a reason."""
    if why_unknown(asked, dialect) is not None or not changes(asked):
        return None
    temperature, top_p, top_k, min_p = (asked.get(name, NEUTRAL[name]) for name in _KNOWN)
    return Law(float(temperature), int(top_k), float(top_p), float(min_p), _CUTS_FIRST.get(dialect, False))


def why_unknown(asked: Mapping[str, Any], dialect: str) -> str | None:
    """Why the law cannot be told from the reference's list, as a part of a sentence; None where it can."""
    off = changes(asked)
    if not off:
        return "llama.cpp forbids the end of a reply where ignore_eos is set" if _forbids_end(asked, dialect) else None
    top_k = asked.get("top_k", -1)
    cuts = any(asked.get(name, NEUTRAL[name]) != NEUTRAL[name] for name in ("top_p", "min_p"))
    if asked.get("temperature", 1) < _GREEDY_BELOW:
        return "greedy replies leave no choice to judge: the probe of the check greedy does"
    if other := [name for name in off if name not in _KNOWN]:
        return f"what {', '.join(other)} does to a law depends on all tokens before, which no list tells"
    if not 1 <= top_k <= SCORED_TOP_K:
        return f"without a top_k of {SCORED_TOP_K} or less, tokens that the reference does not list share in the law"
    if dialect not in _CUTS_FIRST and (cuts or dialect != "sglang"):
        return f"how a server of dialect {dialect} applies them to each other is not known from the reference's list"
    return "llama.cpp forbids the end of a reply where ignore_eos is set" if _forbids_end(asked, dialect) else None


def changes(asked: Mapping[str, Any]) -> list[str]:
    """The settings that change the law. ignore_eos does not: the end is drawn as ever, and not obeyed."""
    return [
        name
        for name, neutral in NEUTRAL.items()
        if name != "ignore_eos" and asked.get(name, neutral) != neutral and (name, asked[name]) != ("top_k", 0)
    ]


def _forbids_end(asked: Mapping[str, Any], dialect: str) -> bool:
    return dialect == "llamacpp" and bool(asked.get("ignore_eos", False))


def described(asked: Mapping[str, Any]) -> str:
    off = [*changes(asked), *(["ignore_eos"] if asked.get("ignore_eos") else [])]
    return ", ".join(f"{name} {asked[name]}" for name in off)
