"""What becomes of numbers in answers that JSON cannot hold."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = ["NON_FINITE", "WORDS", "NonFinite"]

NonFinite = Literal["words", "null", "error"]
"""NaN and infinities are the words `NaN`, `Infinity` and `-Infinity`, `null`, or a refusal."""

NON_FINITE: Final[tuple[NonFinite, ...]] = get_args(NonFinite)
WORDS: Final[NonFinite] = "words"
