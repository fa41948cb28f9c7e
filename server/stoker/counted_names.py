"""Detects first lines of CSV files that are read as rows, but probably are names of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["told_of_counted_names"]


def told_of_counted_names(file: Path, line: str) -> str | None:
    """A warning for a file whose first line numbers its columns, as pandas writes them; None otherwise.

    Args:
        file: The file.
        line: Its first line, with numbers in all cells.
    """
    cells = [cell.strip() for cell in line.split(",")]
    if cells != [str(number) for number in range(len(cells))]:
        return None
    shown = ",".join(cells if len(cells) <= 4 else (*cells[:3], "…", cells[-1]))
    return (
        f"{file}: the first line, {shown}, is scored as a row; if it has the names of the columns, take it out, or "
        "write the file without it (pandas: to_csv(header=False, index=False))"
    )
