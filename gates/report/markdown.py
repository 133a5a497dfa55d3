"""Markdown of GitHub's dialect. Every text is escaped: a name from a server is a name, not markup."""

from gates.report import Report
from gates.report._blocks import Appendix, Block, Heading, Lines, Table
from gates.report._harmless import markdown
from gates.report._page import page


def render(report: Report) -> str:
    return lay_out(page(report))


def lay_out(blocks: list[Block]) -> str:
    return "\n\n".join(_block(block) for block in blocks)


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {markdown(block.text)}"
        case Lines():
            return "  \n".join(_line(line) for line in block.lines)
        case Table():
            return _table(block)
        case Appendix():
            # The content is ASCII JSON: no line of it can close the fence.
            fenced = f"```{block.language}\n{block.content}\n```"
            return f"<details><summary>{markdown(block.title)}</summary>\n\n{fenced}\n\n</details>"


def _line(text: str) -> str:
    """A line that cannot begin a list, a quote or a rule."""
    escaped = markdown(text).strip()
    return f"&#{ord(escaped[0])};{escaped[1:]}" if escaped[:1] in ("-", "+", "=") or _numbered(escaped) else escaped


def _numbered(text: str) -> bool:
    digits = len(text) - len(text.lstrip("0123456789"))
    return digits > 0 and text[digits : digits + 1] in (".", ")")


def _table(table: Table) -> str:
    head = [markdown(column.title) for column in table.columns]
    rule = ["--:" if column.right else "---" for column in table.columns]
    body = [[markdown(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *body])
