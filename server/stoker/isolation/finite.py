"""Numbers that are none: which rows hold NaN or infinities, and which answers do though their rows did not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

__all__ = ["all_finite", "count_unexplained", "finite_rows"]

_SMALL: Final = 8192
"""Up to so many numbers their product with themselves is the quickest look, and numpy starts no threads for it."""


def all_finite(array: np.ndarray) -> bool:
    """Whether there is neither NaN nor an infinity in an array; what has no fraction is always finite."""
    if array.dtype.kind != "f":
        return True
    # Of numbers that are very large the product is none either; then each is looked at.
    if array.size <= _SMALL and array.itemsize > 2 and math.isfinite(np.vdot(array, array)):
        return True
    return bool(np.isfinite(array).all())


def finite_rows(arrays: Iterable[np.ndarray], rows: int) -> np.ndarray | None:
    """Which rows are finite in all arrays `[rows, ...]`, `bool[rows]`; None if all are."""
    finite = None
    for array in arrays:
        if not all_finite(array):
            mine = np.isfinite(array).reshape(rows, -1).all(axis=1)
            finite = mine if finite is None else finite & mine
    return finite


def count_unexplained(inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray], rows: int) -> int:
    """How many rows have answers that are not finite though all that they hold is.

    Args:
        inputs: The inputs, `[rows, ...]` each; looked at only if an answer is not finite.
        outputs: The outputs; likewise.
        rows: How many rows.
    """
    answered = finite_rows(outputs, rows)
    if answered is None:
        return 0
    asked = finite_rows(inputs, rows)
    return int(np.count_nonzero(~answered if asked is None else ~answered & asked))
