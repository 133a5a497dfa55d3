"""How much faster: token rates of passes, their ratios with intervals, SpecScore, tokens a verify step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gates import fairness
from gates.evidence import Arm, Evidence, Pass, Reply
from gates.finding import Score, Speed
from loadgen.record import Setting

LEVEL = 0.95
LATE_MS = 3.0
MOVED_US = 100.0
AMBIGUOUS_SHARE = 0.05
BUNDLED = 1.5
"""Tokens a chunk over tokens a step, from which on chunks are said to be bundled."""

CACHED_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second of one pass, and what it rests on."""

    tokens_per_s: float
    start_ns: int  # of the span that it is measured over
    end_ns: int
    window_share: float  # of the pass's tokens that came within the window
    spread: bool  # usage was spread over chunks, as the wire did not say how many tokens each carries
    narrowed: bool  # no moment had every lane busy: the whole pass was taken


def rate(one: Pass, open_loop: bool = False) -> Rate | None:
    """Tokens that came while every lane was busy, over that time: from the last lane's first send to the first lane's
    last end. With arrivals instead of lanes, over the whole pass. A failed request counts its time, and no token after
    its failure. None where nothing was sent or no time passed.
    """
    sent = [reply for reply in one.replies if reply.sent_ns is not None and reply.end_ns is not None]
    if not sent:
        return None
    start, end = _window(sent) if not open_loop else _whole(sent)
    narrowed = end <= start
    if narrowed:
        start, end = _whole(sent)
    if end <= start:
        return None
    weights = [_tokens(reply) for reply in sent]
    total = sum(float(weight.sum()) for weight in weights)
    # A token that is there at the start was made before it.
    inside = sum(
        float(weight[(reply.chunk_ns > start) & (reply.chunk_ns <= end)].sum())
        for reply, weight in zip(sent, weights, strict=True)
    )
    return Rate(
        tokens_per_s=inside / (end - start) * 1e9,
        start_ns=start,
        end_ns=end,
        window_share=inside / total if total else 1.0,
        spread=any(reply.chunk_tokens is None for reply in sent),
        narrowed=narrowed,
    )


def _window(replies: Sequence[Reply]) -> tuple[int, int]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for reply in replies:
        assert reply.sent_ns is not None and reply.end_ns is not None
        first[reply.lane] = min(reply.sent_ns, first.get(reply.lane, reply.sent_ns))
        last[reply.lane] = max(reply.end_ns, last.get(reply.lane, reply.end_ns))
    return max(first.values()), min(last.values())


def _whole(replies: Sequence[Reply]) -> tuple[int, int]:
    return min(reply.sent_ns or 0 for reply in replies), max(reply.end_ns or 0 for reply in replies)


def _tokens(reply: Reply) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """(chunks,) tokens each chunk carries."""
    if reply.chunk_tokens is not None:
        return reply.chunk_tokens.astype(np.float64)
    chunks = len(reply.chunk_ns)
    return np.full(chunks, (reply.tokens or 0) / max(chunks, 1))


def ratio(passes: Sequence[float]) -> Speed:
    """Mean of the log ratios of paired passes with Student's interval; a single pass has none.

    A pass in which one side brought nothing makes the ratio 0, and no interval.
    """
    from scipy.stats import t

    if min(passes) <= 0:
        return Speed(ratio=0.0, low=None, high=None, passes=list(passes))
    logs = np.log(passes)
    mean = float(logs.mean())
    if len(logs) < 2:
        return Speed(ratio=math.exp(mean), low=None, high=None, passes=list(passes))
    width = float(t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Speed(ratio=math.exp(mean), low=math.exp(mean - width), high=math.exp(mean + width), passes=list(passes))


def specscore(speeds: Mapping[str, Speed], profiles: Sequence[str]) -> Score | None:
    """Geometric mean over the profiles; Student's interval with Satterthwaite's degrees of freedom.

    None unless every profile has a speed; without bounds where a profile has a single pass.
    """
    from scipy.stats import t

    if not profiles or any(name not in speeds for name in profiles):
        return None
    if any(speeds[name].ratio == 0 for name in profiles):
        return Score(value=0.0, low=None, high=None)
    mean = float(np.mean([math.log(speeds[name].ratio) for name in profiles]))
    counts = np.array([len(speeds[name].passes) for name in profiles])
    if counts.min() < 2:
        return Score(value=math.exp(mean), low=None, high=None)
    variances = np.array([np.log(speeds[name].passes).var(ddof=1) for name in profiles]) / counts
    total = float(variances.sum())
    if total == 0:
        return Score(value=math.exp(mean), low=math.exp(mean), high=math.exp(mean))
    freedom = total**2 / float((variances**2 / (counts - 1)).sum())
    width = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(total) / len(profiles)
    return Score(value=math.exp(mean), low=math.exp(mean - width), high=math.exp(mean + width))


def acceptance(arm: Arm, profile: str) -> float | None:
    """Tokens a drafted verify step, from the server's counters at the passes' borders: 1 + Δaccepted/Δdrafts, or
    Δgenerated/Δverified where it counts those (a reply's first token, of its prompt's pass, is then counted too).

    None where the server has no such counters, drafted nothing, or was restarted within every pass.
    """
    steps = tokens = 0.0
    for one in arm.of(profile):
        drafts, accepted = _delta(one, "drafts"), _delta(one, "accepted_tokens")
        verified, generated = _delta(one, "verify_calls"), _delta(one, "generation_tokens")
        if drafts is not None and accepted is not None:
            steps, tokens = steps + drafts, tokens + drafts + accepted
        elif verified is not None and generated is not None:
            steps, tokens = steps + verified, tokens + generated
    return tokens / steps if steps else None


def _delta(one: Pass, name: str) -> float | None:
    start, end = one.start.get(name), one.end.get(name)
    return float(end - start) if start is not None and end is not None and end >= start else None


@dataclass(frozen=True, slots=True)
class Speeds:
    ratios: dict[str, Speed]
    specscore: Score | None
    acceptance: dict[str, float]
    warnings: list[str]


def measure(evidence: Evidence) -> Speeds:
    """Everything about speed, with what should make one doubt it."""
    ratios: dict[str, Speed] = {}
    doubts: dict[str, list[str]] = {}
    for profile in evidence.profiles:
        found = []
        for stock, candidate in evidence.pairs(profile):
            rates = [rate(one, profile in evidence.open_loop) for one in (stock, candidate)]
            for role, of_pass in zip(("stock", "candidate"), rates, strict=True):
                for doubt in _doubts(of_pass):
                    doubts.setdefault(doubt, []).append(f"{profile} {stock.pass_no} {role}")
            if rates[0] is not None and rates[0].tokens_per_s > 0:
                found.append(rates[1].tokens_per_s / rates[0].tokens_per_s if rates[1] else 0.0)
        if found:
            ratios[profile] = ratio(found)
    accepted = {
        profile: steps
        for profile in evidence.profiles
        if (steps := acceptance(evidence.candidate, profile)) is not None
    }
    warnings = [f"{doubt} {_named(passes)}" for doubt, passes in doubts.items()]
    warnings += _too_fast(ratios, accepted, evidence) + _bundled(accepted, evidence)
    warnings += fairness.differences(*_settings(evidence)) + _cached(evidence) + _client(evidence)
    return Speeds(ratios, specscore(ratios, evidence.profiles), accepted, warnings)


def _named(passes: Sequence[str]) -> str:
    return f"Passes: {', '.join(passes)}." if len(passes) <= 4 else f"So in {len(passes)} passes."


def _doubts(of_pass: Rate | None) -> list[str]:
    if of_pass is None:
        return ["Nothing was sent, so there is no rate."]
    doubts = []
    if of_pass.narrowed:
        doubts.append("There was no moment with every lane busy, so the rate is over the whole pass.")
    elif of_pass.window_share < 0.5:
        doubts.append(
            "The rate rests on less than half of the tokens, as lanes ended far apart: ask for more requests."
        )
    if of_pass.spread:
        doubts.append("The server does not say how many tokens a chunk carries, so they are spread evenly over chunks.")
    return doubts


def _too_fast(ratios: Mapping[str, Speed], accepted: Mapping[str, float], evidence: Evidence) -> list[str]:
    return [
        f"{name}: {ratios[name].ratio:.2f}× is more than the {steps:.2f} tokens that a verify step gives. "
        "Speculation alone cannot do that: look for another difference between the two servers."
        for name, steps in accepted.items()
        if name in ratios and name not in evidence.open_loop and ratios[name].ratio > steps
    ]


def _bundled(accepted: Mapping[str, float], evidence: Evidence) -> list[str]:
    """What an engine makes in one step should come in one chunk: held back, it makes gaps of its own."""
    warnings = []
    for name, steps in accepted.items():
        sizes = [
            reply.chunk_tokens
            for one in evidence.candidate.of(name)
            for reply in one.replies
            if reply.chunk_tokens is not None
        ]
        tokens, chunks = sum(int(size.sum()) for size in sizes), sum(map(len, sizes))
        if chunks and tokens > BUNDLED * steps * chunks:
            warnings.append(
                f"{name}: the candidate sends {tokens / chunks:.1f} tokens a chunk and makes {steps:.1f} a step. Steps "
                "come bundled, so gaps between its chunks are not those between its steps; rates are not touched."
            )
    return warnings


def _settings(evidence: Evidence) -> tuple[dict[Setting, str], dict[Setting, str]]:
    """Stock's and the candidate's, as they told them; empty where a run does not hold them."""
    stock, candidate = (
        (
            run.asked.get("endpoints", {}).get(arm.label, {}).get("settings") or {}
            for run, arm in zip((evidence.runs[0], evidence.runs[-1]), evidence.arms, strict=True)
        )
        if evidence.runs
        else ({}, {})
    )
    return stock, candidate


def _cached(evidence: Evidence) -> list[str]:
    """Prompts are fresh in every pass, so that what a prefix cache answers was none of this load's doing."""
    warnings = []
    for arm in evidence.arms:
        prompt, cached = (
            sum(filter(None, (_delta(one, name) for one in arm.passes))) for name in ("prompt_tokens", "cached_tokens")
        )
        if cached > CACHED_SHARE * prompt > 0:
            warnings.append(
                f"{arm.role}: {100 * cached / prompt:.0f} % of the prompt tokens came from a prefix cache, which makes "
                "its speed look better than fresh prompts would: switch the cache off on both servers."
            )
    return warnings


def _client(evidence: Evidence) -> list[str]:
    values = [line for arm in evidence.arms for line in arm.values("client")]
    late = max((line["loop_lag_p99_ms"] for line in values if line.get("loop_lag_p99_ms") is not None), default=0.0)
    shared = max((line["ambiguous_share"] for line in values if line.get("ambiguous_share") is not None), default=0.0)
    warnings = []
    if late > LATE_MS:
        warnings.append(
            f"The client was late: {late:.0f} ms at the 99th percentile of a pass. It does not hold this load here; "
            "use fewer lanes, or a faster machine."
        )
    moved = max((abs(line["clock_moved_us"]) for line in values if line.get("clock_moved_us") is not None), default=0.0)
    if moved > MOVED_US:
        warnings.append(
            f"This machine's clock was set during a pass, by {moved:.0f} µs: arrivals of that pass are off by as much."
        )
    if shared > AMBIGUOUS_SHARE:
        warnings.append(
            f"In a pass {100 * shared:.0f} % of the chunks came together with others in one read: "
            "gaps between chunks are uncertain there, rates are not."
        )
    return warnings
