"""The noise of a device: the difference between answers to equal batches.

Not every device computes the same bits in every run; on a GPU the order of additions may differ. The noise is the
only tolerance of the isolation tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from stoker.isolation.difference import largest_difference

_REPEATS: Final = 6
_NOISE_ROOM: Final = 2.0
_MOST_NOISE: Final = 1e-3
"""Relative to the output. Larger differences are not noise of a device: such a model draws random numbers."""


class Noisy(Exception):
    """Answers to equal batches differ so much that an influence of one row on another could not be detected."""


def measure_noise(
    repeat: Callable[[], Sequence[np.ndarray]], expected: Sequence[np.ndarray], known: float = 0.0
) -> float:
    """Return the largest difference between answers to equal batches, relative to the output; 0 for equal bits.

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
