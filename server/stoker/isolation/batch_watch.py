"""What is looked at in the batches of a model while it serves."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stoker.isolation.audit import Taken, take
from stoker.isolation.finite import count_unexplained

__all__ = ["BatchWatch"]


class BatchWatch:
    """Watches the batches of one thread.

    Attributes:
        takes: Whether a row of the next batch in which there is room for another one is to be kept for an audit.
        taken: The one that was kept; whoever audits it takes it away.
        non_finite_rows: Rows with answers that are not finite though all that they hold is; whoever counts them
            elsewhere sets it to 0.
    """

    def __init__(self) -> None:
        self.takes = False
        self.taken: Taken | None = None
        self.non_finite_rows = 0
        self._random = random.Random(0)  # noqa: S311  # nobody has to be surprised by it

    def look(self, inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray], rows: int) -> None:
        """Count answers of a batch that are not finite; see `count_unexplained`."""
        unexplained = count_unexplained(inputs, outputs, rows)
        if unexplained:
            self.non_finite_rows += unexplained

    def take(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], bounds: Sequence[int]
    ) -> None:
        """Keep the rows between two neighbours of `bounds`, all of which are of one caller, for an audit."""
        part = self._random.randrange(len(bounds) - 1)
        self.taken = take(inputs, outputs, bounds[part], bounds[part + 1])
        self.takes = False
