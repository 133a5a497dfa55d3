"""Are the candidate's tokens an oracle's, in part? The mixture finds them, and a gap to stock makes it a difference."""

import math

from gates import oracles, sequential, tokens
from gates.evidence import Evidence
from gates.finding import Estimate, Finding
from gates.rejection import TUNED_TO, Suspected
from gates.residual_check import METHOD_AGAINST_STOCK
from gates.residuals import matched
from gates.sequential import Interval, Sums

CHECK = "oracle"

_LEAST_GAIN = 1e-5
"""nat a token: an oracle that is the reference but for rounding tells nothing. One at a KL divergence of .001 from it,
as with 8-bit weights, gains about 2e-4."""


def findings(evidence: Evidence, found: Suspected, alpha: float, level: float) -> list[Finding]:
    """One a given oracle over all tokens, and one more for each profile that is different.

    alpha: of the gaps of all oracles over all tokens, and again of those of all profiles together. level: coverage of
    the estimates.
    """
    made = []
    for name in tokens.of(evidence.candidate).oracles:
        of_one = alpha / len(tokens.of(evidence.candidate).oracles)
        made.append(_finding(evidence, name, None, None in found.profiles, (of_one, 1 - level)))
        for profile in evidence.profiles:
            of_profile = (of_one / len(evidence.profiles), 1 - level)
            confined = _finding(evidence, name, profile, profile in found.profiles, of_profile)
            made += [confined] if confined.outcome == "different" else []
    return made


def _finding(
    evidence: Evidence, name: str, profile: str | None, suspected: bool, alphas: tuple[float, float]
) -> Finding:
    """alphas: of the gap that rejects, of the interval that is shown."""
    sums, gain = _sums(evidence, name, profile), _gain(evidence, name)
    if sums is None or gain < _LEAST_GAIN:
        return _silent(evidence, name, profile)
    own, stock = sums
    margin = max(TUNED_TO[CHECK] * own.variance, 1e-9)
    rejected, shown = (sequential.gap(own, stock, margin, alpha) for alpha in alphas)
    different = suspected and rejected.low > 0
    of_stock = sequential.estimating(stock, margin, alphas[1])
    return Finding(
        check=CHECK,
        profile=profile,
        required=False,
        outcome="different" if different else "passed",
        estimate=_estimate(shown, gain, own.n, alphas[1]),
        stock=_estimate(of_stock, gain, stock.n, alphas[1]),
        says=_says(name, shown, gain, different),
    )


def _sums(evidence: Evidence, name: str, profile: str | None) -> tuple[Sums, Sums] | None:
    arms = [
        tokens.by_profile(arm, evidence.profiles if profile is None else [profile], oracles.statistic(name))
        for arm in (evidence.candidate, evidence.stock)
    ]
    pair = matched(*arms)
    return None if pair is None else (sequential.sums(pair[0]), sequential.sums(pair[1]))


def _gain(evidence: Evidence, name: str) -> float:
    """nat a token of the candidate's."""
    known = tokens.of(evidence.candidate)
    scored = sum(len(part) for part in known.residuals[oracles.statistic(name)].values())
    return known.gains.get(name, 0.0) / scored if scored else 0.0


def _silent(evidence: Evidence, name: str, profile: str | None) -> Finding:
    told = any(name in one.oracles for arm in (evidence.candidate, evidence.stock) for one in arm.of(profile))
    why = (
        f"{name} says what the reference says, so that neither's tokens can be told from the other's"
        if told
        else f"{name} scored none of the tokens: `loadgate score RUN --reference ENDPOINT --oracle ENDPOINT`"
    )
    return Finding(check=CHECK, profile=profile, required=False, outcome="undecided", missing=why, says=why)


def _estimate(interval: Interval, gain: float, n: int, alpha: float) -> Estimate:
    return Estimate(
        value=interval.value / gain,
        low=interval.low / gain,
        high=interval.high / gain,
        level=1 - alpha,
        n=n,
        unit="share of tokens",
        method=METHOD_AGAINST_STOCK,
    )


def _says(name: str, interval: Interval, gain: float, different: bool) -> str:
    value, high = interval.value / gain, interval.high / gain
    if different and value > 0.9:
        return f"the tokens are like those of the model {name}"
    if different:
        return f"as if {_percent(value)} of the tokens were drawn by the model {name} and not verified"
    if high < 1:
        return f"at most {_percent(max(high, 0.0))} of the tokens can be unverified ones of the model {name}"
    return f"too few tokens to say how many are unverified ones of the model {name}"


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.1 or math.isclose(share, 0) else 1}f} %"
