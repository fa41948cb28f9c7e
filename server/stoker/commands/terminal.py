"""What people type and read in a terminal: times and numbers of options, sizes, and tables."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, Final

from stoker.system.logs import escaped

__all__ = ["duration_s", "number_option", "sentence", "size_text", "table"]


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


_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_s(text: str) -> int | None:
    """The seconds that a number with `s`, `m`, `h` or `d` means; None if it is nothing of that kind."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]


def number_option(kind: Any, least: float, most: float) -> Any:
    """A reader of a number for argparse, which tells what is wrong with it."""
    from stoker.settings.readers import number_of

    read = number_of(kind, least, most)

    def number(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return number
