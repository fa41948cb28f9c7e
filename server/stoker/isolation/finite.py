"""Finds NaN and infinities: rows that hold them, and answers that do although their inputs were finite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

__all__ = ["all_finite", "count_unexplained", "finite_rows"]

_SMALL: Final = 8192
"""For up to this many numbers the dot product with themselves is the fastest check, and numpy starts no threads."""


def all_finite(array: np.ndarray) -> bool:
    """Whether an array has neither NaN nor infinities; integers and strings are always finite."""
    if array.dtype.kind != "f":
        return True
    # The dot product of very large numbers overflows although they are finite; then each number is checked.
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
    """The number of rows whose answers are not finite although their inputs are.

    Args:
        inputs: The inputs, `[rows, ...]` each; read only if an answer is not finite.
        outputs: The outputs, `[rows, ...]` each.
        rows: The number of rows.
    """
    answered = finite_rows(outputs, rows)
    if answered is None:
        return 0
    asked = finite_rows(inputs, rows)
    return int(np.count_nonzero(~answered if asked is None else ~answered & asked))
