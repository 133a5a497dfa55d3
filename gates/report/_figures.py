"""Numbers as a person reads them. Units are converted here and nowhere else."""

from gates.finding import Estimate

NONE = "–"
_MIB_PER_GIB = 1024
_SIGNED = {"draws": 4, "correlation": 2}
"""unit of a figure that may lie on either side of zero → decimal places"""


def figure(value: float | None) -> str:
    """Three significant digits, thousands set apart: 0.0123, 7.4, 38.1, 141, 6,430."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size < 1e-4:
        return f"{value:.2g}"
    return f"{value:.{1 if size >= 9.995 else 2 if size >= 1 else 3}f}"


def signed(value: float | None, digits: int = 3) -> str:
    return NONE if value is None else f"{value:+.{digits}f}".replace("-", "−")


def span(low: float | None, high: float | None) -> str:
    """An interval; a side that the data do not bound is a dash."""
    return f"{figure(low)} … {figure(high)}" if (low, high) != (None, None) else NONE


def milliseconds(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value / 1000:,.1f} s" if value >= 10_000 else f"{value:,.0f} ms" if value >= 99.95 else f"{value:.1f} ms"


def gib(mib: float) -> str:
    return f"{mib / _MIB_PER_GIB:.1f} GiB"


def times(value: float | None, sign: str = "×") -> str:
    return NONE if value is None else f"{value:.2f}{sign}"


def percent(share: float) -> str:
    """A share in as many digits as tell it from none and from all."""
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.995 <= share < 1:
        return ">99 %"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def about(number: int) -> str:
    """Two significant digits: 440,000."""
    return f"{int(float(f'{number:.2g}')):,}"


def count(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 'es' if one.endswith('s') else 's'}"


def estimate(found: Estimate | None) -> tuple[str, str]:
    """A finding's figure and its interval, by the unit of its value."""
    if found is None:
        return NONE, ""
    if found.unit == "share of requests":
        low, high = (NONE if side is None else percent(side) for side in (found.low, found.high))
        return percent(found.value), f"{low.removesuffix(' %')} … {high}"
    if found.unit == "MiB":
        return gib(found.value), ""
    if found.unit.startswith(("nat", "share")):
        low, high = signed(found.low), signed(found.high)
        return signed(found.value), f"{low} … {high}" + (" nat" if found.unit.startswith("nat") else "")
    if (digits := _SIGNED.get(found.unit)) is not None:
        return signed(found.value, digits), f"{signed(found.low, digits)} … {signed(found.high, digits)}"
    return figure(found.value), span(found.low, found.high)
