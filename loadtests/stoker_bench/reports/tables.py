"""Tables for people: aligned text on the terminal, Markdown for the README."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["UNKNOWN", "aligned", "figure", "markdown"]

UNKNOWN = "–"
WHOLE_FROM, TENTHS_FROM = 100, 10


def figure(value: float | None) -> str:
    """Return a figure with three significant digits or so, thousands grouped; a dash for None."""
    if value is None:
        return UNKNOWN
    if abs(value) >= WHOLE_FROM:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= TENTHS_FROM else f"{value:.2f}"


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is flush left and whose other columns are flush right."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        return "  ".join([first.ljust(widths[0]), *padded]).rstrip()

    return "\n".join([line(headings), line(["-" * width for width in widths]), *map(line, rows)])


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the same table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rule = line(["---", *["---:"] * (len(headings) - 1)])
    return "\n".join([line(headings), rule, *map(line, rows)])
