"""The figures of `loadgate selftest` for a person: each with what it may be."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loadgen.cli.streams import ALPHA, COMPARISON_TOKENS, FAULT_TOKENS

if TYPE_CHECKING:
    from gates.selftest.bounds import Bound

_NONE = "–"


def lossless(said: Mapping[str, Any]) -> list[str]:
    own, process, floor = said["lossless"], said["e_process"], said["shared_floor"]
    errors, reached = said["standard_error"], own["tokens_to_equivalent"]
    lines = [
        f"lossless: {own['false_different']} of {own['streams']:,} comparisons called different; equivalent by "
        f"likelihood and first choices after {_tokens(reached['median'], COMPARISON_TOKENS)} tokens (median), "
        f"{_tokens(reached['p95'], COMPARISON_TOKENS)} (95 %)",
        f"over a numerical floor that both share: {floor['false_different']} of {floor['streams']:,} called different",
    ]
    for share, one in said["at_the_margin"].items():
        lines.append(f"exactly at the margin, in {share}: {one['equivalent']} of {one['streams']:,} called equivalent")
    lines.append(f"standard error of likelihood: {errors['times']:.1f} times smaller than that of two unpaired sets")
    lines += ["", f"E of {process['streams']:,} lossless streams of {process['tokens_each']:,} tokens"]
    lines.append(f"{'':<32}{'E ≥ 20':>10}{'E ≥ 100':>10}{'E ≥ 1000':>10}")
    for kind, above in process["above"].items():
        lines.append(f"{kind:<32}" + "".join(f"{count:>10,}" for count in above.values()))
    return [*lines, ""]


def probes(said: Mapping[str, Any]) -> list[str]:
    prefix = said["repeat_prefix"]
    lines = [
        "checks that rest on probes, lossless",
        f"{'':<48}{'runs':>8}{'p ≤ .05':>10}{'p ≤ .01':>10}{'p ≤ .001':>10}",
    ]
    for kind, null in prefix["null"].items():
        lines += [_rates(f"repeat_prefix, {kind}, {half}", null["runs"], null[half]) for half in null if half != "runs"]
    for check in ("agreement", "honesty"):
        lines.append(_rates(check, said[check]["runs"], said[check]["different"]))
    lines += ["", f"draws that repeat_prefix takes to find frozen noise at {ALPHA:g}, share of runs found"]
    for kl, power in prefix["power"].items():
        lines += [_power(f"KL {kl}, {half}", power[half]) for half in power if half != "runs"]
    lines += ["", f"whole probes of {prefix['draws']:,} draws, judged by plan strict"]
    for kl, whole in prefix["whole"].items():
        what = f"noise of KL {kl}" if float(kl) else "lossless"
        counts = f"{whole['equivalent']} equivalent, {whole['different']} different, of {whole['runs']}"
        lines.append(f"{what:<40}{counts}")
    return [*lines, ""]


def _rates(what: str, runs: int, counts: Mapping[str, int]) -> str:
    return f"{what:<48}{runs:>8,}" + "".join(f"{count:>10,}" for count in counts.values())


def _power(what: str, power: Mapping[str, Any]) -> str:
    found = "  ".join(f"{int(draws):,}: {100 * share:.0f} %" for draws, share in power["found"].items())
    enough = "more than these" if power["draws"] is None else f"{power['draws']:,}"
    return f"{what:<24}{found}; 90 %: {enough}"


def of_faults(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [
        f"{'fault':<18}{'found':>7}{'tokens to DIFFERENT':>21}{'named rightly':>15}{'tokens by E alone':>19}  found by"
    ]
    for name, one in found.items():
        lines.append(_fault(name, one))
        if (told := one.get("by_honesty")) is not None:
            lines.append(_fault("", told))
    return lines


def _fault(name: str, one: Mapping[str, Any]) -> str:
    named = _NONE if one["diagnosed"] is None else f"{100 * one['diagnosed']:.0f} %"
    alone = _NONE if one["e_alone"] is None else _tokens(one["e_alone"]["tokens"], FAULT_TOKENS)
    # Of probes that were always whole, more tokens are not on offer.
    tokens = _tokens(one["tokens_to_different"], FAULT_TOKENS) if one["check"] == "verdict" else _probe(one)
    return f"{name:<18}{100 * one['caught']:>5.0f} %{tokens:>21}{named:>15}{alone:>19}  {one['check']}"


def _probe(one: Mapping[str, Any]) -> str:
    return "over one probe" if one["tokens_to_different"] is None else f"{one['tokens_to_different']:,.0f}"


def _tokens(count: float | None, most: int) -> str:
    return f"over {most:,}" if count is None else f"{count:,.0f}"


def of_bounds(found: "Sequence[Bound]") -> list[str]:
    """Every one, broken ones marked."""
    if not found:
        return []
    lines = ["", f"{'held to':<76}{'measured':>12}{'may be':>12}"]
    for bound in found:
        limit = f"{'≥' if bound.least else '≤'} {_figure(bound.limit)}"
        broken = "" if bound.holds else "  BROKEN"
        of = f" (of {bound.of:,})" if bound.of else ""
        lines.append(f"{bound.says + of:<76}{_figure(bound.figure):>12}{limit:>12}{broken}")
    count = sum(not bound.holds for bound in found)
    return [*lines, "", f"{count} of {len(found)} bounds are broken" if count else f"all {len(found)} bounds hold"]


def _figure(value: float | None) -> str:
    if value is None:
        return "not reached"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"
