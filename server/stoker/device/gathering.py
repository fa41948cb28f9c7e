"""Copies rows of many frontends into the arrays of one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.arena import Arena, gather
from stoker.device.threaded_copies import LARGE_BYTES, ThreadedCopies
from stoker.runtimes.base import BufferedRuntime, Runtime


class Gathering:
    """The arrays of one instance in which batches are gathered: one for each input of fixed size.

    Padding rows are zeros. Left-over rows of earlier batches would do for a model whose rows are independent, but
    an answer must not depend on earlier callers' rows, not even of a model that only seems independent. Zeros are
    also what the model was warmed up with.
    """

    def __init__(self, runtime: Runtime, max_batch_rows: int, copies: ThreadedCopies, *, fills: bool) -> None:
        """Make the arrays, or use the runtime's own.

        Args:
            runtime: The runtime that runs the batches.
            max_batch_rows: Most rows in one batch.
            copies: Copies the rows of batches of many bytes.
            fills: Whether batches are padded.
        """
        self._buffers: list[np.ndarray | None]
        self._names = [spec.name for spec in runtime.signature.stored_inputs]
        self._fills = fills
        self._copies = copies
        self._runtime_reads_them = isinstance(runtime, BufferedRuntime)
        if isinstance(runtime, BufferedRuntime):
            self._buffers = list(runtime.buffers())
        else:
            self._buffers = [
                None if spec.variable else np.zeros((max_batch_rows, *spec.shape), spec.dtype)
                for spec in runtime.signature.stored_inputs
            ]
        # Per input how many rows from the start on may differ from zero.
        self._used_rows = [max_batch_rows] * len(self._buffers)
        # Per input how many rows are many bytes.
        self._large_rows = [
            math.inf if buffer is None else LARGE_BYTES / max(1, buffer.strides[0])
            for buffer in self._buffers
        ]

    def batch(self, blocks: Sequence[tuple[Arena, np.ndarray]], rows: int, size: int) -> list[Any]:
        """Gather rows.

        Args:
            blocks: Arenas, with the numbers of the rows in each.
            rows: How many rows in total.
            size: The size of the batch with its padding.

        Returns:
            Per input an array `[size, *row_shape]`, valid until the next call; for a variable input one `bytes` per
            row.
        """
        return [self._one(index, blocks, rows, size) for index in range(len(self._buffers))]

    def lay_out(self, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Copy a whole batch instead of rows; returns it as `batch` does.

        Args:
            feeds: One array per input, `[size, *row_shape]`; all inputs must have a fixed size.
        """
        arrays = []
        for index, (name, buffer) in enumerate(zip(self._names, self._buffers, strict=True)):
            assert buffer is not None, "only rows of fixed sizes are laid out"
            size = len(feeds[name])
            buffer[:size] = feeds[name]
            self._used_rows[index] = max(size, self._used_rows[index])
            arrays.append(buffer[:size])
        return arrays

    def _one(self, index: int, blocks: Sequence[tuple[Arena, np.ndarray]], rows: int, size: int) -> Any:
        buffer = self._buffers[index]
        if buffer is None:
            return [
                arena.read_bytes("in", index, number)
                for arena, numbers in blocks
                for number in numbers.tolist()
            ]
        if size == 1 and not self._runtime_reads_them:
            arena, numbers = blocks[0]
            number = int(numbers[0])
            return arena.inputs[index][number : number + 1]
        if rows >= self._large_rows[index]:
            self._copies.gather(blocks, index, buffer[:rows])
        else:
            gather(blocks, index, buffer)
        if self._fills:
            if size > rows:
                buffer[rows : self._used_rows[index]] = 0
                self._used_rows[index] = rows
            else:
                self._used_rows[index] = max(rows, self._used_rows[index])
        return buffer[:size]
