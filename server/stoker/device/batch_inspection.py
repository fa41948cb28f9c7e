"""Looks at the rows of batches: which are not finite, and which are kept for an audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stoker.device.batch import Batch
from stoker.isolation.batch_monitor import BatchMonitor
from stoker.tensors import Signature, TensorSpec, all_finite, finite_rows

_LARGE_ROW_BYTES: Final = 16_384
"""Reading a row of this size takes longer than a call for each row does."""


class NotFinite(Exception):
    """Rows of a batch hold NaN or infinities, so it was not run; `finite`, `bool[rows]`, says which rows do not."""

    def __init__(self, finite: np.ndarray) -> None:
        super().__init__()
        self.finite = finite


class BatchInspection:
    """Inspects the batches of one instance, before they run and before their rows are handed back.

    Attributes:
        monitor: Counts rows that are not finite, and keeps rows for audits.
    """

    def __init__(self, signature: Signature, monitor: BatchMonitor) -> None:
        """Inspect batches of this signature, for `monitor`."""
        self.monitor = monitor
        self._inputs, self._outputs = signature.inputs, signature.outputs
        self._float_inputs, self._float_outputs = map(_floats, (signature.inputs, signature.outputs))
        isolation = signature.isolation
        self._separates = isolation is not None and isolation.non_finite_apart and signature.takes == "rows"

    def check_gathered(self, inputs: Sequence[Any], rows: int) -> NotFinite | None:
        """Find the rows of gathered inputs that hold NaN or infinities, if the model needs them apart."""
        if not self._separates or rows == 1:
            return None
        finite = finite_rows([inputs[index][:rows] for index in self._float_inputs], rows)
        return None if finite is None else NotFinite(finite)

    def check_in_arenas(self, batch: Batch) -> NotFinite | None:
        """Find the rows of a batch that hold NaN or infinities, where they lie; see `check_gathered`."""
        if not self._separates or batch.rows == 1:
            return None
        finite = np.ones(batch.rows, bool)
        for index in self._float_inputs:
            start = 0
            for block in batch.blocks:
                stop = start + block.rows
                rows = batch.lanes[block.lane].arena.inputs[index]
                if rows.strides[0] < _LARGE_ROW_BYTES:
                    of_block = finite_rows((rows.take(block.numbers, axis=0),), block.rows)
                    if of_block is not None:
                        finite[start:stop] &= of_block
                else:
                    finite[start:stop] &= [all_finite(rows[number]) for number in block.numbers.tolist()]
                start = stop
        return None if finite.all() else NotFinite(finite)

    def inspect_answers(self, batch: Batch, inputs: list[Any] | None, outputs: list[Any], size: int) -> None:
        """Inspect the outputs of a batch, `[size, ...]` each; without `inputs` they are copied if they are needed."""
        rows = batch.rows
        for index in self._float_outputs:
            if not all_finite(outputs[index]):
                inputs = inputs or self._copied_inputs(batch, size)
                self._count_non_finite(inputs, outputs, rows)
                break
        if self.monitor.wants_rows and size > 1:
            inputs = inputs or self._copied_inputs(batch, size)
            named = zip(self._inputs, inputs, strict=True), zip(self._outputs, outputs, strict=True)
            taken, given = ({spec.name: array for spec, array in side} for side in named)
            self.monitor.keep_rows(taken, given, range(rows + 1))

    def _copied_inputs(self, batch: Batch, size: int) -> list[np.ndarray]:
        """The inputs of a batch with its padding, in memory of their own."""
        copied = []
        for index, spec in enumerate(self._inputs):
            array = np.zeros((size, *spec.shape), spec.dtype)
            start = 0
            for block in batch.blocks:
                stop = start + block.rows
                array[start:stop] = batch.lanes[block.lane].arena.inputs[index][block.numbers]
                start = stop
            copied.append(array)
        return copied

    def _count_non_finite(self, inputs: list[Any], outputs: list[Any], rows: int) -> None:
        """Find the rows of a batch whose answers are not finite; padding does not count."""
        self.monitor.count_non_finite(
            [inputs[index][:rows] for index in self._float_inputs],
            [outputs[index][:rows] for index in self._float_outputs],
            rows,
        )


def _floats(specs: Sequence[TensorSpec]) -> list[int]:
    """The indices of tensors that may hold NaN and infinities."""
    return [i for i, spec in enumerate(specs) if not spec.variable and spec.kind == "f"]
