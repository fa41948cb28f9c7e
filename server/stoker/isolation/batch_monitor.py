"""Counts rows with unexplained NaN or infinities in the batches of a thread, and keeps rows for audits."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stoker.isolation.audit import AuditedRows, copy_rows
from stoker.tensors import finite_rows


class BatchMonitor:
    """Inspects the batches of one thread.

    Attributes:
        wants_rows: Whether to keep a row of the next batch that has room for another one, for an audit.
        kept_rows: The rows that were kept; the auditor reads and resets them.
        non_finite_rows: Number of rows with NaN or infinite answers to finite inputs; reset by the thread that adds
            it to the metrics.
    """

    def __init__(self) -> None:
        self.wants_rows = False
        self.kept_rows: AuditedRows | None = None
        self.non_finite_rows = 0
        self._random = random.Random(0)  # noqa: S311  # needs no cryptographic randomness

    def count_non_finite(
        self, inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray], rows: int
    ) -> None:
        """Count the rows of a batch whose answers are not finite although their inputs are.

        Args:
            inputs: The inputs, `[rows, ...]` each; read only if an answer is not finite.
        """
        finite_answers = finite_rows(outputs, rows)
        if finite_answers is not None:
            finite_inputs = finite_rows(inputs, rows)
            unexplained = ~finite_answers if finite_inputs is None else ~finite_answers & finite_inputs
            self.non_finite_rows += int(np.count_nonzero(unexplained))

    def keep_rows(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], bounds: Sequence[int]
    ) -> None:
        """Keep the rows between two consecutive `bounds`, which belong to one caller, for an audit."""
        part = self._random.randrange(len(bounds) - 1)
        self.kept_rows = copy_rows(inputs, outputs, bounds[part], bounds[part + 1])
        self.wants_rows = False
