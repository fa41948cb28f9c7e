"""First lines of CSV that are rows to whoever reads them, and were most likely written as names of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["told_of_counted_names"]


def told_of_counted_names(file: Path, line: str) -> str | None:
    """What is to be said of a file whose first line counts its columns, as pandas names them; None of others.

    Args:
        file: The file.
        line: Its first line, of which all cells are numbers.
    """
    cells = [cell.strip() for cell in line.split(",")]
    if cells != [str(number) for number in range(len(cells))]:
        return None
    shown = ",".join(cells if len(cells) <= 4 else (*cells[:3], "…", cells[-1]))
    return (
        f"{file}: the first line, {shown}, is scored as a row; if it has the names of the columns, take it out, or "
        "write the file without it (pandas: to_csv(header=False, index=False))"
    )
