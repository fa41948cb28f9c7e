"""How large a device's noise is: what equal batches give that is not equal.

Not every device computes the same bits from run to run; the order in which a GPU adds may differ. How far the answers
to one batch are from each other when it is repeated is the only tolerance that isolation has.
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
"""Relative to the output: what is beyond is no noise of a device, but a model that draws random numbers."""


class Noisy(Exception):
    """Equal batches get answers so different that a row's share in another's would not be seen."""


def noise_of(
    repeat: Callable[[], Sequence[np.ndarray]], expected: Sequence[np.ndarray], known: float = 0.0
) -> float:
    """How far answers to equal batches may be from each other, relative to the output; 0 for bits alike.

    Args:
        repeat: Runs the batch again; returns the answers that are looked at.
        expected: What they were before.
        known: What is known of the noise already.

    Raises:
        Noisy: So far that nothing can be said.
    """
    noise = known
    for _ in range(_REPEATS):
        noise = max(noise, _NOISE_ROOM * largest_difference(repeat(), expected))
    if noise > _MOST_NOISE:
        raise Noisy
    return noise
