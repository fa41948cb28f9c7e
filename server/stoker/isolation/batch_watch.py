"""Inspects batches of a model while it serves: samples rows for audits, and counts answers that are not finite."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stoker.isolation.audit import Taken, take
from stoker.isolation.finite import count_unexplained

__all__ = ["BatchWatch"]


class BatchWatch:
    """Inspects the batches of one thread.

    Attributes:
        takes: Whether to keep a row of the next batch that has room for another one, for an audit.
        taken: The rows that were kept; the auditor takes them and resets this.
        non_finite_rows: Number of rows with NaN or infinite answers to finite inputs; reset by the thread that adds
            it to the metrics.
    """

    def __init__(self) -> None:
        self.takes = False
        self.taken: Taken | None = None
        self.non_finite_rows = 0
        self._random = random.Random(0)  # noqa: S311  # needs no cryptographic randomness

    def look(self, inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray], rows: int) -> None:
        """Count the rows of a batch with unexplained non-finite answers; see `count_unexplained`."""
        unexplained = count_unexplained(inputs, outputs, rows)
        if unexplained:
            self.non_finite_rows += unexplained

    def take(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], bounds: Sequence[int]
    ) -> None:
        """Keep the rows between two consecutive `bounds`, which belong to one caller, for an audit."""
        part = self._random.randrange(len(bounds) - 1)
        self.taken = take(inputs, outputs, bounds[part], bounds[part + 1])
        self.takes = False
