"""Differences of answers: bit for bit, and relative to the output's magnitude."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stoker.tensors import number_kind

_SMALLEST_SIZE = 1e-6
"""Lower bound of the magnitude that differences are divided by, for outputs close to zero."""


def same_bits(mine: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two arrays have the same shape, dtype and bits; strings are compared by value."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    if mine.dtype == object:
        return bool(mine.tolist() == theirs.tolist())
    return mine.tobytes() == theirs.tobytes()


def largest_difference(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the largest difference from expected outputs, relative to the largest number of each output.

    It is infinite if outputs are not comparable: NaN and infinities must be at the same positions, and integers and
    strings be equal.
    """
    return max(map(_difference, outputs, expected), default=0.0)


def _difference(output: np.ndarray, expected: np.ndarray) -> float:
    if same_bits(output, expected):
        return 0.0
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return float("inf")
    if number_kind(output.dtype) != "f":
        return 0.0 if np.array_equal(output, expected) else float("inf")
    finite = np.isfinite(expected)
    if not np.array_equal(output[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    finite_numbers = expected[finite].astype(np.float64)
    if not finite_numbers.size:
        return 0.0
    gap = np.abs(output[finite].astype(np.float64) - finite_numbers).max()
    return (
        float(gap / max(np.abs(finite_numbers).max(), _SMALLEST_SIZE)) if np.isfinite(gap) else float("inf")
    )
