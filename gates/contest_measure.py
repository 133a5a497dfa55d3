"""A contest's figures from the evidence of a new run: ratios, likelihood, first choices, lengths, memory."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from gates import speed
from gates.contest_rules import Gap, Length, Limits, Memory, Ratio, Z
from gates.evidence import Arm, Evidence, Pass
from gates.scored import Rows

Floats = npt.NDArray[np.float64]

FLOOR_NAT = -100.0
"""A token that the reference calls impossible counts as this: its logarithm has no mean."""

TIED_NAT = 1e-6
"""Log-probabilities this close to the largest are first choices too: 16-bit logits tie."""


class Rules(BaseModel):
    """What plan contest's table [contest] may say. None: that gate is not set."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    likelihood_bound: float | None = Field(default=None, ge=0)
    argmax_bound: float | None = Field(default=None, ge=0)
    fidelity_ceiling: float | None = Field(default=None, ge=0)
    length_margin: float | None = Field(default=None, ge=0)
    memory_utilization: float = Field(default=0.9, gt=0, le=1)
    memory_slack_mib: float = Field(default=4096, ge=0)
    greedy_agreement_floor: float | None = Field(default=None, ge=0, le=1)

    def limits(self) -> Limits:
        return Limits.model_validate(self.model_dump(exclude={"memory_utilization"}))


def ratios(evidence: Evidence) -> dict[str, Ratio]:
    """Each profile's passes, by pass number: the candidate's token rate over stock's."""
    return {name: _ratio(evidence, name) for name in evidence.profiles}


def _ratio(evidence: Evidence, profile: str) -> Ratio:
    open_loop = profile in evidence.open_loop
    found = [_pass_ratio(stock, candidate, open_loop) for stock, candidate in evidence.pairs(profile)]
    passes = [value for value in found if value is not None]
    return Ratio(passes=passes, ratio=statistics.median(passes) if passes else None)


def _pass_ratio(stock: Pass, candidate: Pass, open_loop: bool) -> float | None:
    """0 where the candidate failed more requests than stock: what it dropped made it no faster."""
    if failures(candidate) > failures(stock):
        return 0.0
    rates = [speed.rate(one, open_loop) for one in (stock, candidate)]
    # A pass that brought no token is not measured: 0 is kept for failures, and is read as such.
    if rates[0] is None or rates[1] is None or min(rates[0].tokens_per_s, rates[1].tokens_per_s) == 0:
        return None
    return rates[1].tokens_per_s / rates[0].tokens_per_s


def failures(one: Pass) -> int:
    """Failed requests, less those that this client itself called off."""
    return sum(reply.failure not in (None, "cancelled") for reply in one.replies)


@dataclass(frozen=True, slots=True)
class Replies:
    """Scored replies of one endpoint. A mean over them is Σ value / Σ weight; prompts are what varies independently."""

    prompts: list[tuple[str, int, str]]
    value: Floats
    weight: Floats


def likelihood(evidence: Evidence) -> Gap | None:
    """Means over replies of a reply's mean log-probability under the reference; None where a side has none."""
    return _gap([_by_reply(_scored(arm, _logprob)) for arm in evidence.arms], evidence.paired)


def argmax(evidence: Evidence) -> Gap | None:
    """Shares, over all tokens alike, that are not the reference's first choice."""
    return _gap([_scored(arm, _not_first) for arm in evidence.arms], evidence.paired)


def scored(arm: Arm) -> tuple[int, int]:
    """(replies, tokens) that the reference scored."""
    found = _scored(arm, _not_first)
    return len(found.prompts), round(float(found.weight.sum()))


def _logprob(rows: Rows) -> Floats:
    own, last = rows["logprob"].astype(float), np.where(rows["ids"] >= 0, rows["logprobs"], np.inf).min(axis=1)
    # A token without a figure of its own is outside the list: no likelier than the last on it. Dropping it would
    # select on what was drawn.
    return np.asarray(np.maximum(np.where(np.isnan(own), last, own), FLOOR_NAT), float)


def _not_first(rows: Rows) -> Floats:
    # Outside the list (NaN) compares false and is no first choice.
    return np.asarray(~(rows["logprob"] >= rows["logprobs"].max(axis=1, initial=-np.inf) - TIED_NAT), float)


def _scored(arm: Arm, figure: Callable[[Rows], Floats]) -> Replies:
    """Sums of a token's figure over each reply, and its scored tokens as weight."""
    prompts: list[tuple[str, int, str]] = []
    values: list[Floats] = [np.empty(0)]
    weights: list[Floats] = [np.empty(0)]
    for one in arm.passes:
        total = np.bincount(one.scored.reply, weights=figure(one.scored.rows), minlength=len(one.replies))
        tokens = np.bincount(one.scored.reply, minlength=len(one.replies))
        kept = np.flatnonzero(tokens)
        prompts += [(one.profile, one.pass_no, one.replies[index].prompt_id) for index in kept]
        values.append(np.asarray(total[kept], float))
        weights.append(np.asarray(tokens[kept], float))
    return Replies(prompts, np.concatenate(values), np.concatenate(weights))


def _by_reply(replies: Replies) -> Replies:
    return Replies(replies.prompts, replies.value / replies.weight, np.ones(len(replies.prompts)))


def _gap(arms: list[Replies], paired: bool) -> Gap | None:
    """Difference of two weighted means. Its standard error is clustered by prompt: the two replies to one prompt are
    alike, and their linearised deviations are subtracted before they are squared."""
    if not all(len(arm.prompts) for arm in arms):
        return None
    stock, candidate = (float(arm.value.sum() / arm.weight.sum()) for arm in arms)
    deviations: defaultdict[Any, float] = defaultdict(float)
    for sign, mean, arm in zip((-1, 1), (stock, candidate), arms, strict=True):
        off = sign * (arm.value - mean * arm.weight) / arm.weight.sum()
        for prompt, deviation in zip(arm.prompts, off.tolist(), strict=True):
            deviations[prompt if paired else (sign, prompt)] += deviation
    clusters = len(deviations)
    if clusters < 2:
        return None
    se = math.sqrt(clusters / (clusters - 1) * sum(deviation**2 for deviation in deviations.values()))
    return Gap(gap=candidate - stock, se=se, candidate=candidate, stock=stock)


def lengths(evidence: Evidence) -> dict[str, Length] | None:
    """By profile; without those where fewer than two prompts were answered whole by both."""
    found = {name: length for name in evidence.profiles if (length := _length(evidence, name)) is not None}
    return found or None


def _length(evidence: Evidence, profile: str) -> Length | None:
    """Ratio of mean lengths with a delta-method interval, symmetric about it as the published ones are."""
    stock, candidate = (_whole(arm.of(profile)) for arm in evidence.arms)
    if evidence.paired:
        both = [prompt for prompt in candidate if prompt in stock]
        stock, candidate = ({prompt: side[prompt] for prompt in both} for side in (stock, candidate))
    ours, theirs = (np.array(list(side.values()), float) for side in (candidate, stock))
    if min(len(ours), len(theirs)) < 2 or not theirs.sum():
        return None
    ratio = float(ours.mean() / theirs.mean())
    if evidence.paired:
        variance = float((ours - ratio * theirs).var(ddof=1)) / len(ours)
    else:
        variance = float(ours.var(ddof=1)) / len(ours) + ratio**2 * float(theirs.var(ddof=1)) / len(theirs)
    reach = Z * math.sqrt(variance) / float(theirs.mean())
    return Length(ratio=ratio, low=ratio - reach, high=ratio + reach, paired=evidence.paired, replies=len(ours))


def _whole(passes: list[Pass]) -> dict[tuple[int, str], int]:
    """Lengths in tokens of the replies that ended by themselves."""
    return {
        (one.pass_no, reply.prompt_id): reply.tokens
        for one in passes
        for reply in one.replies
        if reply.failure is None and reply.tokens is not None
    }


def memory(evidence: Evidence, rules: Rules) -> Memory | None:
    """The candidate's peak; allowed are utilization × total + slack. None where the peak or the total is unknown."""
    peak, total = _largest(evidence.candidate, "peak_mib"), _largest(evidence.candidate, "total_mib")
    if peak is None or total is None:
        return None
    allowed = (_largest(evidence.stock, "utilization") or rules.memory_utilization) * total + rules.memory_slack_mib
    return Memory(ok=peak <= allowed, peak_mib=peak, allowed_mib=allowed)


def _largest(arm: Arm, name: str) -> float | None:
    return max((values[name] for values in arm.values("memory") if values.get(name) is not None), default=None)


def acceptance(evidence: Evidence) -> dict[str, float]:
    """Tokens a verify step, of the profiles where the candidate's server counts them."""
    found = {name: speed.acceptance(evidence.candidate, name) for name in evidence.profiles}
    return {name: value for name, value in found.items() if value is not None}
