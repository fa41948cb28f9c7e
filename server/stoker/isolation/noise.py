"""Measures a device's noise: how far answers to equal batches differ.

Not every device computes the same bits in every run; on a GPU the order of additions may differ. The difference
between the answers to one batch when it is repeated is the only tolerance of the isolation tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from stoker.isolation.difference import largest_difference

__all__ = ["Noisy", "noise_of"]

_REPEATS: Final = 6
_NOISE_ROOM: Final = 2.0
_MOST_NOISE: Final = 1e-3
"""Relative to the output: larger differences are not noise of a device; such a model draws random numbers."""


class Noisy(Exception):
    """Answers to equal batches differ so much that an influence of one row on another could not be detected."""


def noise_of(
    repeat: Callable[[], Sequence[np.ndarray]], expected: Sequence[np.ndarray], known: float = 0.0
) -> float:
    """The largest difference between answers to equal batches, relative to the output; 0 if they are bit-identical.

    Args:
        repeat: Runs the batch again; returns the compared answers.
        expected: The answers of the first run.
        known: The noise as known so far.

    Raises:
        Noisy: The noise is too large to conclude anything.
    """
    noise = known
    for _ in range(_REPEATS):
        noise = max(noise, _NOISE_ROOM * largest_difference(repeat(), expected))
    if noise > _MOST_NOISE:
        raise Noisy
    return noise
