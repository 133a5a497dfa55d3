"""The numpy half of `loadgate selftest`: what is drawn, how often, and the figures of it."""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gates.checks import Terms
    from gates.scored import Rows
    from gates.selftest import prefixes, rates
    from gates.selftest.bounds import Bound
    from loadgen.cli.progress import Progress

NULL_TOKENS = 200_000
FAULT_TOKENS = 200_000
COMPARISON_TOKENS = 90_000

ALPHA = 0.001
_LOOK = 3  # probes are looked at behind so many passes, where nothing else is asked for

_KL = {"noise-0.005": 0.005, "noise-0.01": 0.01}
"""Faults that only repeated draws show."""


def choose(rows: "Rows", count: int) -> list[int]:
    """As the probe chooses its prefixes; each token here is a request of its own."""
    from loadgen.probes import prefixes

    return [start.request for start in prefixes.chosen([rows], count, 0)]


class Streams:
    """streams: lossless ones of each kind; of what costs more a part of that is drawn."""

    def __init__(self, streams: int, processes: int, progress: "Progress") -> None:
        self._streams, self._processes, self._progress = streams, processes, progress
        self.bounds: list[Bound] = []
        """Of all that was measured so far."""

    def done(self) -> None:
        self._progress.clear()

    def _part(self, of: int, fewest: int = 20) -> int:
        return max(fewest, self._streams // of)

    def _spread(self, name: str, task: Any, total: int, each: int) -> Iterator[Any]:
        from gates.selftest import rates

        self._progress.start(name, total, 0)
        done = 0
        for part in rates.spread(task, total, each, self._processes):
            done = min(total, done + each)
            self._progress.counted(done, total)
            yield part

    # What a lossless candidate comes out as.

    def lossless(self) -> dict[str, Any]:
        from gates.selftest import bounds, rates

        above = self._e_process()
        compared = self._compared("lossless comparisons", floor=False)
        floor = self._compared("comparisons over a shared floor", floor=True)
        self.bounds += bounds.of_equivalent(compared.equivalent.tolist())
        margin = {share: self._margin(share) for share in (1.0, 0.1)}
        residual, unpaired = rates.standard_errors(400, 1)
        times = unpaired / residual
        self.bounds.append(bounds.Bound("standard error, times smaller", times, bounds.SHARPER, least=True))
        return {
            "lossless": {
                "streams": len(compared.equivalent),
                "tokens_each": COMPARISON_TOKENS,
                "false_different": compared.different,
                "tokens_to_equivalent": {"median": compared.reached(0.5), "p95": compared.reached(0.95)},
            },
            "e_process": {"streams": self._streams, "tokens_each": NULL_TOKENS, "above": above},
            "shared_floor": {"streams": len(floor.equivalent), "false_different": floor.different},
            "at_the_margin": {f"{share:g} of the replies": found for share, found in margin.items()},
            "standard_error": {"residual": residual, "unpaired": unpaired, "times": times},
        }

    def _e_process(self) -> dict[str, dict[str, int]]:
        """kind → bound of E → streams that passed it."""
        from gates.selftest import bounds, rates

        kinds = {
            "plain": partial(rates.plain_sups, NULL_TOKENS, 0.0),
            "scorer noise 0.03": partial(rates.plain_sups, NULL_TOKENS, 0.03),
            "speculative, sampled drafts": partial(rates.chunked_sups, NULL_TOKENS, True),
            "speculative, argmax drafts": partial(rates.chunked_sups, NULL_TOKENS, False),
        }
        above = {name: self._above(name, task) for name, task in kinds.items()}
        for name, found in above.items():
            self.bounds += bounds.of_e(name, found, self._streams)
        return above

    def _above(self, name: str, task: Any) -> dict[str, int]:
        import numpy as np

        from gates.selftest import rates

        sups = np.concatenate(list(self._spread(name, task, self._streams, 100)))
        return {f"{bound:g}": int((sups >= np.log(bound)).sum()) for bound in rates.BOUNDS}

    def _compared(self, name: str, floor: bool) -> "rates.Compared":
        from gates.selftest import bounds, rates

        task = partial(rates.lossless, COMPARISON_TOKENS, floor)
        found = rates.Compared.joined(list(self._spread(name, task, self._part(5), 25)))
        says = f"{name} called DIFFERENT"
        self.bounds.append(bounds.counted(says, found.different, len(found.equivalent), bounds.WRONG))
        return found

    def _margin(self, share: float) -> dict[str, int]:
        from gates.selftest import bounds, rates

        total = self._part(5)
        task = partial(rates.at_the_margin, COMPARISON_TOKENS, share)
        found = sum(self._spread(f"at the margin ({share:g})", task, total, 25))
        says = f"at the margin, in {share:g} of the replies, called EQUIVALENT"
        self.bounds.append(bounds.counted(says, found, total, bounds.AT_THE_MARGIN))
        return {"streams": total, "equivalent": found}

    # Probes.

    @cached_property
    def _probe(self) -> "prefixes.Probe":
        from gates.selftest import prefixes
        from loadgen.probes import repeat_prefix

        return prefixes.Probe(choose, repeat_prefix.PREFIXES, repeat_prefix.DRAWS)

    @cached_property
    def _terms(self) -> "Terms":
        from gates import plan
        from gates.selftest.comparison import Rules

        return Rules(plan.load("strict")).terms(_LOOK)

    def probes(self) -> dict[str, Any]:
        """Their checks' error rates, and the draws that repeat_prefix takes."""
        return {
            "repeat_prefix": {
                "draws": self._probe.prefixes * self._probe.draws,
                "null": {
                    "plain": self._null("plain", 0.0, self._streams, 0.05),
                    "scorer noise 0.1": self._null("scorer noise 0.1", 0.1, self._part(5), 1.0),
                },
                "power": {f"{kl:g}": self._power(kl) for kl in (0.005, 0.01)},
                "whole": {f"{kl:g}": self._whole(kl) for kl in (0.0, 0.005, 0.01)},
            },
            "agreement": self._quiet("agreement", "repeat_audit"),
            "honesty": self._quiet("honesty", "logprobs"),
        }

    def _null(self, name: str, scorer_noise: float, runs: int, below: float) -> dict[str, Any]:
        """level → probes of lossless candidates with a p-value so small, by each half of the check."""
        from gates.selftest import prefixes

        task = partial(prefixes.lossless, self._probe, scorer_noise, below)
        parts = self._spread(f"repeated draws, lossless, {name}", task, runs, prefixes.PER_SITE)
        found = prefixes.Chances.joined(list(parts))
        halves = {"verdict": found.both}
        halves |= {"against stock": found.stock} if scorer_noise else {"reference": found.reference}
        said = {half: self._small(f"repeat_prefix, {name}, {half}", of.tolist()) for half, of in halves.items()}
        return {"runs": runs, **said}

    def _small(self, says: str, chances: Sequence[float]) -> dict[str, int]:
        from gates.selftest import bounds, replies

        found = {level: sum(one <= level for one in chances) for level in replies.LEVELS}
        self.bounds += [
            bounds.counted(f"{says}: p ≤ {level:g}", count, len(chances), level) for level, count in found.items()
        ]
        return {f"{level:g}": count for level, count in found.items()}

    def _power(self, kl: float) -> dict[str, Any]:
        """Share found at ALPHA, at several sizes of the probe; verdict: by the reference, and by stock too."""
        from gates.selftest import bounds, prefixes

        sizes, draws, runs = prefixes.SIZES[kl], self._probe.draws, self._part(50)
        task = partial(prefixes.noisy, self._probe, kl, sizes)
        found = prefixes.Chances.joined(list(self._spread(f"repeated draws, noise of KL {kl:g}", task, runs, 10)))
        halves = {"reference": found.reference, "verdict": found.both}
        for half, chances in halves.items():
            most = bounds.DRAWS[half][f"{kl:g}"]
            at = max(place for place, size in enumerate(sizes) if size * draws <= most)
            missed = int((chances[:, at] > ALPHA).sum())
            says = f"repeat_prefix, KL {kl:g} not found in {sizes[at] * draws:,} draws, {half}"
            self.bounds.append(bounds.counted(says, missed, runs, 1 - bounds.POWER))
        said = {half: self._of_power((chances <= ALPHA).mean(axis=0), sizes) for half, chances in halves.items()}
        return {"runs": runs, **said}

    def _of_power(self, power: "npt.NDArray[np.float64]", sizes: Sequence[int]) -> dict[str, Any]:
        from gates.selftest import bounds, prefixes

        draws = self._probe.draws
        found = {str(size * draws): share for size, share in zip(sizes, power.tolist(), strict=True)}
        return {"found": found, "draws": prefixes.draws_for(power, sizes, draws, bounds.POWER)}

    def _whole(self, kl: float) -> dict[str, Any]:
        """Whole probes by plan strict, at the level of its third look."""
        from gates.selftest import prefixes

        task = partial(prefixes.judged, self._probe, kl, self._terms.p_value)
        name = f"whole probes, noise of KL {kl:g}" if kl else "whole probes, lossless"
        found = sum(part.sum(axis=0) for part in self._spread(name, task, self._part(100), 10))
        return {"runs": self._part(100), "equivalent": int(found[0]), "different": int(found[1])}

    def _quiet(self, check: str, kind: Any) -> dict[str, Any]:
        from gates.selftest import bounds, replies

        runs = self._part(10)
        task = partial(replies.lossless, kind, self._terms)
        found = replies.totals(list(self._spread(f"{check}, lossless", task, runs, 10)))
        for level, count in found.items():
            self.bounds.append(bounds.counted(f"{check}, lossless: p ≤ {level}", count, runs, float(level)))
        return {"runs": runs, "different": found}

    # Faults.

    def fault(self, name: str) -> dict[str, Any]:
        """By the verdict on timed tokens, or by the check that the fault needs; and by E alone where tokens show it."""
        from gates.selftest import bounds, faults, rates

        streams = min(100, self._part(20))
        if name in faults.BETWEEN_REPLIES:
            return self._copies(name, streams)
        said = self._repeated(name) if name in _KL else self._by_verdict(name, streams)
        if name in rates.OF_EVERY_TOKEN:
            said["e_alone"] = self._e_alone(name, streams)
            self.bounds += bounds.of_fault(name, said["e_alone"]["tokens"])
        if name == "dishonest":
            said["by_honesty"] = self._by_honesty(streams // 2)
        return said

    def _by_verdict(self, name: str, streams: int) -> dict[str, Any]:
        from gates.selftest import rates

        task = partial(rates.by_verdict, name, FAULT_TOKENS)
        return _said("verdict", rates.Found.joined(list(self._spread(name, task, streams // 2, streams // 4))))

    def _e_alone(self, name: str, streams: int) -> dict[str, Any]:
        from gates.selftest import rates

        task = partial(rates.by_e_alone, name, FAULT_TOKENS)
        alone = rates.Found.joined(list(self._spread(f"{name}, E alone", task, streams, streams // 2)))
        return {"streams": len(alone.tokens), "caught": alone.caught, "tokens": alone.median}

    def _copies(self, name: str, streams: int) -> dict[str, Any]:
        from gates.selftest import rates, replies

        task = partial(replies.copies, self._terms)
        return _said("agreement", rates.Found.joined(list(self._spread(name, task, streams, streams // 4))))

    def _by_honesty(self, streams: int) -> dict[str, Any]:
        from gates.selftest import rates, replies

        task = partial(replies.dishonest, self._terms)
        parts = list(self._spread("dishonest, log-probabilities", task, streams, max(1, streams // 4)))
        return _said("honesty", rates.Found.joined(parts))

    def _repeated(self, name: str) -> dict[str, Any]:
        """A draw is a token; the whole probe is always asked for."""
        whole = self._whole(_KL[name])
        caught = whole["different"] / whole["runs"]
        tokens = float(self._probe.prefixes * self._probe.draws) if caught >= 0.5 else None
        return {
            "streams": whole["runs"],
            "caught": caught,
            "tokens_to_different": tokens,
            "diagnosed": None,
            "check": "repeat_prefix",
            "e_alone": None,
        }


def _said(check: str, found: "rates.Found") -> dict[str, Any]:
    return {
        "streams": len(found.tokens),
        "caught": found.caught,
        "tokens_to_different": found.median,
        "diagnosed": found.diagnosed,
        "check": check,
        "e_alone": None,
    }
