"""Sizes and tables as commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.system.logs import escaped

__all__ = ["sentence", "size_text", "table"]


def sentence(text: str) -> str:
    """A help text as a sentence: its first letter alone becomes a capital, and names stay as they are."""
    return f"{text[0].upper()}{text[1:]}."


def size_text(size_bytes: float) -> str:
    """A size as people read it, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns of one width, each on its line; what would break a line is shown as a space, or escaped."""
    clean = [[escaped(" ".join(cell.split())) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in clean)
    return "".join(f"{line}\n" for line in lines)
