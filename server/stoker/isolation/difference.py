"""How answers differ: bit for bit, relative to the output's magnitude, by the device's noise, by NaN and infinities.

Not every device computes the same bits in every run; on a GPU the order of additions may differ. The difference
between the answers to one batch when it is repeated is the only tolerance of the isolation tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from stoker.tensors import finite_rows, number_kind

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
    """The largest difference of outputs from the expected ones, relative to the largest number of each output.

    Infinite if not comparable: NaN and infinities must be at the same positions, and integers and strings be equal.
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
    wanted = expected[finite].astype(np.float64)
    if not wanted.size:
        return 0.0
    gap = np.abs(output[finite].astype(np.float64) - wanted).max()
    return float(gap / max(np.abs(wanted).max(), _SMALLEST_SIZE)) if np.isfinite(gap) else float("inf")


# Measures a device's noise: how far answers to equal batches differ.


_REPEATS: Final = 6
_NOISE_ROOM: Final = 2.0
_MOST_NOISE: Final = 1e-3
"""Relative to the output: larger differences are not noise of a device; such a model draws random numbers."""


class Noisy(Exception):
    """Answers to equal batches differ so much that an influence of one row on another could not be detected."""


def measure_noise(
    repeat: Callable[[], Sequence[np.ndarray]], expected: Sequence[np.ndarray], known: float = 0.0
) -> float:
    """The largest difference between answers to equal batches, relative to the output; 0 if they are bit-identical.

    Args:
        repeat: Runs the batch again; returns the compared answers.

    Raises:
        Noisy: The noise is too large to conclude anything.
    """
    noise = known
    for _ in range(_REPEATS):
        noise = max(noise, _NOISE_ROOM * largest_difference(repeat(), expected))
    if noise > _MOST_NOISE:
        raise Noisy
    return noise


# Finds NaN and infinities: rows that hold them, and answers that do although their inputs were finite.


def count_unexplained(inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray], rows: int) -> int:
    """The number of rows whose answers are not finite although their inputs are.

    Args:
        inputs: The inputs, `[rows, ...]` each; read only if an answer is not finite.
    """
    answered = finite_rows(outputs, rows)
    if answered is None:
        return 0
    asked = finite_rows(inputs, rows)
    return int(np.count_nonzero(~answered if asked is None else ~answered & asked))
