"""What a page is made of, before any format. Every text in it is raw; a format makes it harmless and lays it out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Lines:
    """Each on its own."""

    lines: list[str]


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False  # numbers


@dataclass(frozen=True, slots=True)
class Table:
    """rows: one text a column. A table whose titles are all empty has no head."""

    columns: list[Column]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Appendix:
    """For machines and the curious; left out where it would bury the page."""

    title: str
    content: str
    language: str


Block = Heading | Lines | Table | Appendix
