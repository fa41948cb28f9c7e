"""How numbers that JSON cannot represent are written in answers."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = ["NON_FINITE", "WORDS", "NonFinite"]

NonFinite = Literal["words", "null", "error"]
"""NaN and infinities are written as `NaN`, `Infinity` and `-Infinity`, as `null`, or the request fails."""

NON_FINITE: Final[tuple[NonFinite, ...]] = get_args(NonFinite)
WORDS: Final[NonFinite] = "words"
