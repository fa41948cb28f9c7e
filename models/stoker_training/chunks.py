"""Scoring many rows without holding all their activations at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["in_chunks"]

_CHUNK_ROWS = 1000

Rows = NDArray[np.float32]


def in_chunks(score: Callable[[Rows], Rows], rows: Rows) -> Rows:
    """Apply `score` (float32[n, 784] to float32[n, 10]) chunk by chunk: float32[rows, 10].

    A convolution's activations of 10,000 images at once would take gigabytes.
    """
    chunks = np.array_split(rows, max(1, len(rows) // _CHUNK_ROWS))
    return np.concatenate([score(chunk) for chunk in chunks])
