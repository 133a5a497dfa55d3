"""Plain text, at most 110 columns: what a terminal shows."""

from typing import TYPE_CHECKING

from gates.contest import Difference, Rechecked
from gates.contest_rules import Record, Submission
from gates.report import Report, _contest
from gates.report._blocks import Appendix, Block, Heading, Lines, Table
from gates.report._harmless import visible
from gates.report._page import page

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType
    from rich.text import Text

WIDTH = 110
GAP = 2
READABLE = 24
"""A column that wraps is left this wide while others can give way too."""


def render(report: Report) -> str:
    return lay_out(page(report))


def rechecked(submission: Submission | None, record: Record, again: Rechecked) -> str:
    """A contest record's page by today's arithmetic, and where the record says otherwise."""
    said = ["Reproduced: medians, SpecScore, gates and reason are as recorded."]
    if not again.reproduced:
        said = ["NOT REPRODUCED", *(_differing(found) for found in again.differences)]
    return lay_out([*_contest.page(submission, record), Lines(said)])


def _differing(found: Difference) -> str:
    return f"{found.field}: recorded {found.recorded}, recomputed {found.recomputed}"


def lay_out(blocks: list[Block]) -> str:
    """The blocks as text, an empty line between them; appendices are left to other formats."""
    shown = [_block(block) for block in blocks if not isinstance(block, Appendix)]
    return "\n\n".join(text for text in shown if text)


def _block(block: Heading | Lines | Table) -> str:
    match block:
        case Heading():
            return _wrapped(visible(block.text))
        case Lines():
            return "\n".join(_wrapped(visible(line)) for line in block.lines)
        case Table():
            return _table(block)


def _wrapped(line: str) -> str:
    return _printed(_plain(line))


def _table(table: Table) -> str:
    from rich.table import Table as Grid

    headed = any(column.title for column in table.columns)
    grid = Grid(box=None, show_header=headed, pad_edge=False, padding=(0, GAP, 0, 0), header_style="")
    for column, width in zip(table.columns, _widths(table), strict=True):
        justify: JustifyMethod = "right" if column.right else "left"
        grid.add_column(_plain(column.title), justify=justify, overflow="fold", width=width)
    for row in table.rows:
        grid.add_row(*(_plain(visible(cell)) for cell in row))
    return _printed(grid)


def _widths(table: Table) -> list[int]:
    """Each column's own width; where they do not all fit, the widest gives way first, and wraps."""
    from rich.cells import cell_len

    cells = [[column.title for column in table.columns], *([visible(cell) for cell in row] for row in table.rows)]
    widths = [max(1, *map(cell_len, column)) for column in zip(*cells, strict=True)]
    over = sum(widths) + GAP * (len(widths) - 1) - WIDTH
    for least in (READABLE, 1):
        for place in sorted(range(len(widths)), key=lambda place: -widths[place]):
            given = max(0, min(over, widths[place] - least))
            widths[place] -= given
            over -= given
    return widths


def _plain(text: str) -> "Text":
    from rich.text import Text

    # A Text is shown as it is: rich reads markup and emoji names only in str.
    return Text(text, overflow="fold")


def _printed(what: "RenderableType") -> str:
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(what)
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
