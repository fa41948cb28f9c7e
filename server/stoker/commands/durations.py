"""How long something lasts, as options say it."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["duration_s"]

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_s(text: str) -> int | None:
    """The seconds that a number with `s`, `m`, `h` or `d` means; None if it is nothing of that kind."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]
