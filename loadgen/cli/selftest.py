"""`loadgate selftest`: the gates' own error rates."""

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from gates.selftest import rates
    from loadgen.cli.planted import Compared
    from loadgen.cli.progress import Progress

_NULL_TOKENS = 200_000
_FAULT_TOKENS = 200_000
_COMPARISON_TOKENS = 90_000
_LOSSLESS = "none"


@click.command(short_help="the gates' own error rates")
@click.option("--fault", metavar="F", help="this fault alone, such as temperature-0.95")
@click.option(
    "--streams",
    type=click.IntRange(20, 100_000),
    default=1000,
    show_default=True,
    help="lossless ones of each kind; --engine draws none",
)
@click.option("--engine", is_flag=True, help="whole comparisons of embedded engines instead, under a clock that jumps")
@click.option("--json", "as_json", is_flag=True, help="the rates as JSON")
def command(fault: str | None, streams: int, engine: bool, as_json: bool) -> int:
    """Draw streams of tokens from servers whose faults are known, and judge them by the code that judges runs.

    Says how often a lossless server would be called different, how many tokens it takes to call it equivalent, and how
    many to find each fault. No server is started. 1,000 streams take about three minutes on two cores; --streams 10000
    gives the rates that the README states.

    \b
    loadgate selftest
    loadgate selftest --fault top-p-0.98
    loadgate selftest --streams 10000 --json
    loadgate selftest --engine
    loadgate selftest --engine --fault late

    --engine plants faults in the embedded engine, loads it as `loadgate compare` does, scores and judges: prompts to
    verdict, a few seconds each.

    Exit code: 1 where an error rate is above what it may be; with --engine, where a lossless engine is called different
    or a planted fault stays unseen.
    """
    from loadgen.cli.progress import Progress

    progress = Progress()
    if engine:
        return _engines(_planted(fault), progress, as_json)
    wanted = _of_streams(fault)
    made = _Selftest(streams, max(1, os.cpu_count() or 1), progress)
    lossless = None if fault is not None else made.lossless()
    found = {name: made.fault(name) for name in wanted}
    progress.clear()
    if as_json:
        said = {"alpha": 0.001, **({} if lossless is None else lossless), "faults": found | _absent(fault)}
        click.echo(orjson.dumps(said, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join([*([] if lossless is None else _lossless_lines(lossless)), *_fault_lines(found)]))
    return 0 if lossless is None or lossless["holds"] else 1


def _of_streams(fault: str | None) -> list[str]:
    from gates.selftest import faults
    from loadgen.record import nearest

    if fault is None:
        return list(faults.LAWS)
    if fault in faults.LAWS:
        return [fault]
    if fault in faults.NAMES:
        raise click.UsageError(
            f"Each token of fault {fault!r} is drawn as it should be, so that no stream of tokens shows it: "
            f"`loadgate selftest --engine --fault {fault}` plants it in the embedded engine."
        )
    raise click.UsageError(f"There is no fault {fault!r}. {nearest(fault, list(faults.NAMES))}")


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
        return {
            "lossless": {
                "streams": len(compared.equivalent),
                "tokens_each": _COMPARISON_TOKENS,
                "false_different": compared.different,
                "tokens_to_equivalent": {"median": compared.reached(0.5), "p95": compared.reached(0.95)},
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
        verdict = rates.Found.joined(
            list(self._spread(name, partial(rates.by_verdict, name, _FAULT_TOKENS), streams // 2, streams // 4))
        )
        return {
            "streams": len(verdict.tokens),
            "caught": verdict.caught,
            "tokens_to_different": verdict.median,
            "diagnosed": verdict.diagnosed,
            "e_alone": self._e_alone(name, streams) if name in rates.OF_EVERY_TOKEN else None,
        }

    def _e_alone(self, name: str, streams: int) -> dict[str, Any]:
        from gates.selftest import rates

        task = partial(rates.by_e_alone, name, _FAULT_TOKENS)
        alone = rates.Found.joined(list(self._spread(f"{name}, E alone", task, streams, streams // 2)))
        return {"streams": len(alone.tokens), "caught": alone.caught, "tokens": alone.median}

    def _spread(self, name: str, task: Any, total: int, each: int) -> Iterator[Any]:
        from gates.selftest import rates

        self._progress.start(name, total, 0)
        done = 0
        for part in rates.spread(task, total, each, self._processes):
            done = min(total, done + each)
            self._progress.counted(done, total)
            yield part


def _absent(fault: str | None) -> dict[str, Any]:
    """null: no token shows it. No streams: it takes two replies to one prompt, and `--engine`."""
    from gates.selftest import faults

    if fault is not None:
        return {}
    none = {"streams": 0, "caught": None, "tokens_to_different": None, "diagnosed": None}
    return dict.fromkeys(faults.BETWEEN_REPLIES, none) | dict.fromkeys(faults.NO_STATISTIC)


def _lossless_lines(said: dict[str, Any]) -> list[str]:
    own, process, floor = said["lossless"], said["e_process"], said["shared_floor"]
    errors, reached = said["standard_error"], own["tokens_to_equivalent"]
    lines = [
        f"lossless: {own['false_different']} of {own['streams']:,} comparisons called different; equivalent after "
        f"{_tokens(reached['median'], _COMPARISON_TOKENS)} tokens (median), "
        f"{_tokens(reached['p95'], _COMPARISON_TOKENS)} (95 %)",
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
        alone = "–" if one["e_alone"] is None else _tokens(one["e_alone"]["tokens"], _FAULT_TOKENS)
        lines.append(
            f"{name:<20}{100 * one['caught']:>5.0f} %{_tokens(one['tokens_to_different'], _FAULT_TOKENS):>21}"
            f"{named:>15}{alone:>19}"
        )
    return lines


def _tokens(count: float | None, most: int) -> str:
    return f"over {most:,}" if count is None else f"{count:,.0f}"


# Whole comparisons of embedded engines.


def _planted(fault: str | None) -> list[str | None]:
    """The lossless engine first: what is said of it, a fault must be told from."""
    from loadgen.cli import planted
    from loadgen.record import nearest
    from servers.sim.faults import NAMES

    if fault not in (None, _LOSSLESS, *NAMES):
        raise click.UsageError(f"The embedded engine has no fault {fault!r}. {nearest(str(fault), list(NAMES))}")
    if fault is None:
        return [None, *(name for name in planted.FEW if name in NAMES)]
    return [None] if fault == _LOSSLESS else [None, fault]


def _engines(faults: list[str | None], progress: "Progress", as_json: bool) -> int:
    from loadgen.cli import planted

    progress.start("embedded engines", len(faults), 0)
    found: dict[str, Compared] = {}
    for fault, one in planted.spread(faults, 1, planted.TOKENS, max(1, os.cpu_count() or 1)):
        found[fault or _LOSSLESS] = one
        progress.counted(len(found), len(faults))
    progress.clear()
    as_wanted = {name: _as_wanted(name, one, found[_LOSSLESS]) for name, one in found.items()}
    if as_json:
        said = {name: _engine_json(one, as_wanted[name]) for name, one in found.items()}
        click.echo(orjson.dumps({"engine": said}, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join(_engine_lines(found, as_wanted)))
    return 0 if all(as_wanted.values()) else 1


def _as_wanted(name: str, one: "Compared", lossless: "Compared") -> bool:
    """Lossless: not different. A fault: different, or, where no token shows it, warned of."""
    from gates.selftest import faults

    if name == _LOSSLESS:
        return one.outcome != "different"
    return one.outcome == "different" or (name in faults.NO_STATISTIC and bool(_new(one, lossless)))


def _new(one: "Compared", lossless: "Compared") -> list[str]:
    return [warning for warning in one.warnings if warning not in lossless.warnings]


def _engine_json(one: "Compared", as_wanted: bool) -> dict[str, Any]:
    return {
        "outcome": one.outcome,
        "tokens": one.tokens,
        "diagnosis": one.diagnosis,
        "checks": one.checks,
        "warnings": one.warnings,
        "as_wanted": as_wanted,
    }


def _engine_lines(found: "dict[str, Compared]", as_wanted: dict[str, bool]) -> list[str]:
    lines = [f"{'planted':<18}{'verdict':<12}{'tokens':>8}  what says so"]
    for name, one in found.items():
        said = "; ".join([*one.checks, *([] if one.diagnosis is None else [one.diagnosis])])
        if not said and name != _LOSSLESS:
            said = " ".join(_new(one, found[_LOSSLESS]))
        unseen = "" if as_wanted[name] else ("wrongly called different: " if name == _LOSSLESS else "not seen  ")
        lines.append(f"{name:<18}{one.outcome.upper():<12}{one.tokens:>8,}  {unseen}{said}".rstrip())
    return lines
