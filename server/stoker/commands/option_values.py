"""Times and numbers, as options say them."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final

from stoker.settings.readers import number_of

__all__ = ["duration_s", "number_option"]

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_s(text: str) -> int | None:
    """The seconds that a number with `s`, `m`, `h` or `d` means; None if it is nothing of that kind."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]


def number_option(kind: Any, least: float, most: float) -> Any:
    """A reader of a number for argparse, which tells what is wrong with it."""
    read = number_of(kind, least, most)

    def number(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return number
