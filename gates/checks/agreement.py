"""Are two replies to one prompt as independent as two draws? Kept replies, and one seed for all, agree too often.

While two replies are alike their next tokens are two draws from one law, and fall into one cell with the chance
s = Σ p². If with the chance w the second is a copy of the first, that chance is w + (1 − w)s: the product of the ratios
over all places is a test martingale, the mean over a few w is one too, and 1/sup E is a p-value (Ville 1939).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gates.checks import Checked, CheckSettings, Terms, without_data
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding
from gates.probes import Probed, why_none
from gates.residuals import Floats, cells
from gates.scored import Rows
from loadgen.record import Probe, Record

SEQUENCES = 0
P_VALUES = 1
PROBES: tuple[Probe, ...] = ("repeat_audit",)

METHOD = "share of like tokens while two replies to one prompt are alike, minus Σ p² of the reference; e-process"

_COPIED = (0.02, 0.1, 0.3, 0.6, 0.95)
_MUCH_FASTER = 2.0
_FEWEST_TIMED = 8


class Settings(CheckSettings):
    """It has no margin: it may reject, and passes otherwise."""


@dataclass(frozen=True, slots=True)
class Places:
    """n places that pairs of replies come to alike. agree: whether the next tokens share a cell; chance: Σ p²."""

    agree: Floats
    chance: Floats

    @property
    def n(self) -> int:
        return len(self.agree)

    @property
    def log_e(self) -> Floats:
        """(n,) the log of the test martingale after each place."""
        shares = np.array(_COPIED)
        agreeing = shares + (1 - shares) * self.chance[:, None]
        ratios = np.where(self.agree[:, None] > 0, agreeing / self.chance[:, None], 1 - shares)
        running = np.logaddexp.reduce(np.cumsum(np.log(ratios), axis=0), axis=1)
        return np.asarray(running - math.log(len(shares)), np.float64)

    @property
    def p_value(self) -> float:
        """Of agreeing so often, however one looks; 1 where there is nothing."""
        return math.exp(-max(0.0, float(self.log_e.max()))) if self.n else 1.0

    def p_against(self, stock: "Places") -> float:
        """Of exceeding stock's own excess so far, by the normal law of the difference of two mean residuals."""
        from scipy.special import ndtr

        means = [float((one.agree - one.chance).mean()) for one in (self, stock)]
        variance = sum(float((one.agree - one.chance).var()) / one.n for one in (self, stock))
        return float(ndtr(-(means[0] - means[1]) / math.sqrt(variance))) if variance > 0 else 1.0


def check(evidence: Evidence, settings: Settings, terms: Terms) -> Checked:
    for arm in evidence.arms:
        if (why := why_none(arm.label, arm.probed("repeat_audit"), "repeat_audit")) is not None:
            return without_data("agreement", terms, why)
    own, stock = (places(arm.probed("repeat_audit")) for arm in (evidence.candidate, evidence.stock))
    if not own.n or not stock.n:
        return without_data("agreement", terms, "no prompt of the repeat audit was answered twice")
    p_value = max(own.p_value, own.p_against(stock))
    rejects = p_value <= terms.p_value
    finding = Finding(
        check="agreement",
        required=terms.required,
        outcome="different" if rejects else "passed",
        estimate=_estimate(own, terms.equivalent),
        stock=_estimate(stock, terms.equivalent),
        says=_says(own, rejects) + _faster(evidence),
    )
    return Checked([finding])


def places(probed: Probed) -> Places:
    parts = [_of_pair(probed.rows(first), probed.rows(second)) for first, second in pairs(probed.records)]
    agree, chance = (np.concatenate([part[i] for part in parts] or [np.empty(0)]) for i in (0, 1))
    return Places(agree, chance)


def pairs(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Replies to one prompt, the second with the first, the fourth with the third."""
    replies: dict[str, list[Record]] = {}
    for record in records:
        if record.token_ids:
            replies.setdefault(record.prompt_id, []).append(record)
    return [pair for found in replies.values() for pair in zip(found[::2], found[1::2], strict=False)]


def _of_pair(first: Rows, second: Rows) -> tuple[Floats, Floats]:
    n = min(len(first), len(second))
    if not n:
        return np.empty(0), np.empty(0)
    alike = first["token_id"][:n] == second["token_id"][:n]
    n = n if alike.all() else int(np.argmin(alike)) + 1
    # One law for both, the first's: what the second drew is looked up in it.
    asked = first[:n].copy()
    asked["token_id"] = second["token_id"][:n]
    block, other = cells(first[:n]), cells(asked)
    chance = (block.p**2).sum(axis=1) + block.other**2
    return (block.cell == other.cell).astype(np.float64), np.clip(chance, 1e-9, 1)


def _estimate(found: Places, level: float) -> Estimate:
    from scipy.special import ndtri

    value = float((found.agree - found.chance).mean())
    reach = float(ndtri((1 + level) / 2)) * math.sqrt(float((found.chance * (1 - found.chance)).sum())) / found.n
    return Estimate(
        value=value,
        low=value - reach,
        high=value + reach,
        level=level,
        n=found.n,
        unit="share of places",
        method=METHOD,
    )


def _says(own: Places, rejects: bool) -> str:
    share, expected = float(own.agree.mean()), float(own.chance.mean())
    where = "of the places that they come to alike"
    says = f"two replies to one prompt agree in {share:.0%} {where}, by chance in {expected:.0%}"
    return f"{says}: as if replies were kept and given again, or all had one seed" if rejects else says


def _faster(evidence: Evidence) -> str:
    """Where the second time is much quicker a token than on stock, that looks like a cache of replies."""
    own, stock = (_quicker(arm) for arm in (evidence.candidate, evidence.stock))
    if own is None or stock is None or own < _MUCH_FASTER * max(stock, 1.0):
        return ""
    return f"; the second time the reply came {own:.1f} times as fast, as from a cache"


def _quicker(arm: Arm) -> float | None:
    """The median ratio of the times a token, first over second, of replies that followed each other."""
    ratios = [
        before / after
        for first, second in pairs(arm.probed("repeat_audit").records)
        if (second.sent_ns or 0) >= (first.end_ns or 0)
        and (before := _ms_a_token(first))
        and (after := _ms_a_token(second))
    ]
    return float(np.median(ratios)) if len(ratios) >= _FEWEST_TIMED else None


def _ms_a_token(record: Record) -> float | None:
    tokens = len(record.token_ids or ())
    if record.sent_ns is None or record.end_ns is None or not tokens:
        return None
    return (record.end_ns - record.sent_ns) / tokens / 1e6
