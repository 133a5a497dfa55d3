"""`loadgate selftest`: the gates' own error rates."""

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from gates.selftest import rates
    from loadgen.cli.progress import Progress

_NULL_TOKENS = 200_000
_FAULT_TOKENS = 200_000
_COMPARISON_TOKENS = 90_000
_NO_STATISTIC = ("same-seed", "replay", "under-load", "late", "dishonest", "short", "dropped", "usage", "bundled")
"""Faults that are not of one token's law: they show in the embedded engine, not in these streams."""


@click.command(short_help="the gates' own error rates")
@click.option("--fault", metavar="F", help="this fault alone, such as temperature-0.95")
@click.option(
    "--streams", type=click.IntRange(20, 100_000), default=1000, show_default=True, help="lossless ones of each kind"
)
@click.option("--json", "as_json", is_flag=True, help="the rates as JSON")
def command(fault: str | None, streams: int, as_json: bool) -> int:
    """Draw streams of tokens from servers whose faults are known, and judge them by the code that judges runs.

    Says how often a lossless server would be called different, how many tokens it takes to call it equivalent, and how
    many to find each fault. No server is started. 1,000 streams take about two minutes on two cores; --streams 10000
    gives the rates that the README states.

    \b
    loadgate selftest
    loadgate selftest --fault top-p-0.98
    loadgate selftest --streams 10000 --json

    Exit code: 1 where an error rate is above what it may be.
    """
    from gates.selftest import faults
    from loadgen.cli.progress import Progress
    from loadgen.record import nearest

    if fault is not None and fault not in faults.LAWS:
        raise click.UsageError(f"There is no fault {fault!r}. {nearest(fault, list(faults.LAWS))}")
    progress = Progress()
    made = _Selftest(streams, max(1, os.cpu_count() or 1), progress)
    wanted = [fault] if fault is not None else list(faults.LAWS)
    lossless = None if fault is not None else made.lossless()
    found = {name: made.fault(name) for name in wanted}
    progress.clear()
    if as_json:
        said = {"alpha": 0.001, **({} if lossless is None else lossless), "faults": _with_absent(found, fault)}
        click.echo(orjson.dumps(said, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join([*([] if lossless is None else _lossless_lines(lossless)), *_fault_lines(found)]))
    return 0 if lossless is None or lossless["holds"] else 1


class _Selftest:
    def __init__(self, streams: int, processes: int, progress: "Progress") -> None:
        self._streams, self._processes, self._progress = streams, processes, progress

    def lossless(self) -> dict[str, Any]:
        from gates.selftest import rates

        kinds = {
            "plain": partial(rates.plain_sups, _NULL_TOKENS, 0.0),
            "scorer noise 0.03": partial(rates.plain_sups, _NULL_TOKENS, 0.03),
            "speculative, sampled drafts": partial(rates.chunked_sups, _NULL_TOKENS, True),
            "speculative, argmax drafts": partial(rates.chunked_sups, _NULL_TOKENS, False),
        }
        above = {name: self._above(name, task) for name, task in kinds.items()}
        compared = self._compared("lossless comparisons", floor=False)
        floor = self._compared("comparisons over a shared floor", floor=True)
        margin = {share: self._margin(share) for share in (1.0, 0.1)}
        residual, unpaired = rates.standard_errors(400, 1)
        comparisons = len(compared.equivalent)
        reached = sorted(seen if seen > 0 else _COMPARISON_TOKENS * 10 for seen in compared.equivalent.tolist())
        return {
            "lossless": {
                "streams": comparisons,
                "tokens_each": _COMPARISON_TOKENS,
                "false_different": compared.different,
                "tokens_to_equivalent": {
                    "median": reached[len(reached) // 2],
                    "p95": reached[min(len(reached) - 1, int(0.95 * len(reached)))],
                },
            },
            "e_process": {"streams": self._streams, "tokens_each": _NULL_TOKENS, "above": above},
            "shared_floor": {"streams": len(floor.equivalent), "false_different": floor.different},
            "at_the_margin": {f"{share:g} of the replies": found for share, found in margin.items()},
            "standard_error": {"residual": residual, "unpaired": unpaired, "times": unpaired / residual},
            "holds": self._holds(above, compared, floor, margin),
        }

    def _above(self, name: str, task: Any) -> dict[str, int]:
        """bound of E → streams that passed it."""
        import numpy as np

        from gates.selftest import rates

        sups = np.concatenate(list(self._spread(name, task, self._streams, 100)))
        return {f"{bound:g}": int((sups >= np.log(bound)).sum()) for bound in rates.BOUNDS}

    def _compared(self, name: str, floor: bool) -> "rates.Compared":
        from gates.selftest import rates

        task = partial(rates.lossless, _COMPARISON_TOKENS, floor)
        return rates.Compared.joined(list(self._spread(name, task, max(20, self._streams // 5), 25)))

    def _margin(self, share: float) -> dict[str, int]:
        from gates.selftest import rates

        total = max(20, self._streams // 5)
        task = partial(rates.at_the_margin, _COMPARISON_TOKENS, share)
        return {"streams": total, "equivalent": sum(self._spread(f"at the margin ({share:g})", task, total, 25))}

    def _holds(self, above: Any, compared: "rates.Compared", floor: "rates.Compared", margin: Any) -> bool:
        """No rate is above what it may be, by more than chance makes in one of a thousand selftests."""
        from gates.selftest.rates import allowed

        counts = [(float(bound), count) for kind in above.values() for bound, count in kind.items()]
        rates_hold = all(count <= allowed(self._streams, 1 / bound) for bound, count in counts)
        verdicts_hold = all(one.different <= allowed(len(one.equivalent), 0.005) for one in (compared, floor))
        return (
            rates_hold
            and verdicts_hold
            and all(one["equivalent"] <= allowed(one["streams"], 0.05) for one in margin.values())
        )

    def fault(self, name: str) -> dict[str, Any]:
        from gates.selftest import rates

        streams = min(100, max(20, self._streams // 20))
        alone = rates.Found.joined(
            list(self._spread(name, partial(rates.by_e_alone, name, _FAULT_TOKENS), streams, streams // 2))
        )
        verdict = rates.Found.joined(
            list(self._spread(name, partial(rates.by_verdict, name, _FAULT_TOKENS), streams // 2, streams // 4))
        )
        return {
            "streams": len(verdict.tokens),
            "caught": verdict.caught,
            "tokens_to_different": verdict.median,
            "diagnosed": verdict.diagnosed,
            "e_alone": {"streams": len(alone.tokens), "caught": alone.caught, "tokens": alone.median},
        }

    def _spread(self, name: str, task: Any, total: int, each: int) -> Iterator[Any]:
        from gates.selftest import rates

        self._progress.start(name, total, 0)
        done = 0
        for part in rates.spread(task, total, each, self._processes):
            done = min(total, done + each)
            self._progress.counted(done, total)
            yield part


def _with_absent(found: dict[str, Any], fault: str | None) -> dict[str, Any]:
    absent = {"streams": 0, "caught": None, "tokens_to_different": None, "diagnosed": None}
    return found | ({} if fault is not None else dict.fromkeys(_NO_STATISTIC, absent))


def _lossless_lines(said: dict[str, Any]) -> list[str]:
    own, process, floor = said["lossless"], said["e_process"], said["shared_floor"]
    errors = said["standard_error"]
    lines = [
        f"lossless: {own['false_different']} of {own['streams']:,} comparisons called different; equivalent after "
        f"{own['tokens_to_equivalent']['median']:,} tokens (median), {own['tokens_to_equivalent']['p95']:,} (95 %)",
        f"over a numerical floor that both share: {floor['false_different']} of {floor['streams']:,} called different",
    ]
    for share, one in said["at_the_margin"].items():
        lines.append(
            f"exactly at the margin, in {share}: {one['equivalent']} of {one['streams']:,} called equivalent (5 % may)"
        )
    lines.append(f"standard error of likelihood: {errors['times']:.1f} times smaller than that of two unpaired sets")
    lines += ["", f"E of {process['streams']:,} lossless streams of {process['tokens_each']:,} tokens"]
    lines.append(f"{'':<32}{'E ≥ 20':>10}{'E ≥ 100':>10}{'E ≥ 1000':>10}")
    for kind, above in process["above"].items():
        lines.append(f"{kind:<32}" + "".join(f"{count:>10,}" for count in above.values()))
    return [*lines, ""]


def _fault_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{'fault':<20}{'found':>7}{'tokens to DIFFERENT':>21}{'named rightly':>15}{'tokens by E alone':>19}"]
    for name, one in found.items():
        named = "–" if one["diagnosed"] is None else f"{100 * one['diagnosed']:.0f} %"
        lines.append(
            f"{name:<20}{100 * one['caught']:>5.0f} %{_tokens(one['tokens_to_different']):>21}{named:>15}"
            f"{_tokens(one['e_alone']['tokens']):>19}"
        )
    return lines


def _tokens(count: float | None) -> str:
    return f"over {_FAULT_TOKENS:,}" if count is None else f"{count:,.0f}"
