"""Moves rows between the arenas of many frontends and the arrays of one batch: gathers inputs, scatters answers."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.arena import Arena, Outcome, gather
from stoker.device.batch import Batch
from stoker.device.lanes import Lane
from stoker.device.row_blocks import RowBlock
from stoker.device.threaded_copies import LARGE_BYTES, ThreadedCopies
from stoker.errors import InvalidInput
from stoker.metrics.counters import packed_facts
from stoker.runtimes.base import BufferedRuntime, ErrorForCaller, OutOfMemory, RowFailure, Runtime
from stoker.tensors import TensorSpec

logger = logging.getLogger(__name__)

_REASON_BYTES: Final = 1000
# numpy converts plain integers several times faster than members of an IntEnum.
_OK: Final = int(Outcome.OK)


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


class Scattering:
    """Hands back the rows of one instance.

    Attributes:
        padding_rows: How many padding rows its batches have had since they were counted.
        is_doubtful: Whether a row of the batch failed for a reason that may be the device's.
    """

    def __init__(self, outputs: tuple[TensorSpec, ...], clock_ns: Callable[[], int]) -> None:
        """Write these outputs."""
        self.padding_rows = 0
        self.is_doubtful = False
        self._outputs = outputs
        self._clock_ns = clock_ns

    def scatter(self, batch: Batch, outputs: list[Any], size: int, started_ns: int) -> None:
        """Hand back the rows of a batch with its outputs, `[size, ...]` each; it began to run at `started_ns`."""
        blocks, rows, lanes = batch.blocks, batch.rows, batch.lanes
        facts = packed_facts(rows, size, batch.reason, blocks)
        if size > rows:
            self.padding_rows += size - rows
        elif len(blocks) == 1:
            self._scatter_block(lanes[blocks[0].lane], blocks[0], outputs, started_ns, facts)
            return
        start = 0
        for block in blocks:
            stop = start + block.rows
            self._scatter_block(
                lanes[block.lane], block, [array[start:stop] for array in outputs], started_ns, facts
            )
            start = stop

    def _scatter_block(
        self, lane: Lane, block: RowBlock, outputs: list[Any], started_ns: int, facts: int
    ) -> None:
        lane.check_consumer()
        arena = lane.arena
        where: np.ndarray | slice = block.numbers
        if len(block.numbers) == 1:
            # An array with one number costs several times as much as a number.
            number = int(block.numbers[0])
            where = slice(number, number + 1)
        arena.done[where] = (_OK, started_ns, self._clock_ns(), facts)
        for index, (spec, array) in enumerate(zip(self._outputs, outputs, strict=True)):
            if spec.variable:
                self._scatter_texts(arena, index, block.numbers.tolist(), array)
            else:
                arena.outputs[index][where] = array
        lane.send(block.numbers)

    def _scatter_texts(
        self, arena: Arena, index: int, numbers: list[int], texts: Iterable[bytes | RowFailure]
    ) -> None:
        for number, text in zip(numbers, texts, strict=True):
            if isinstance(text, RowFailure):
                self._mark_row(arena, index, number, text.error)
            elif not arena.write_bytes("out", index, number, text):
                arena.outcome[number] = Outcome.TOO_LARGE

    def _mark_row(self, arena: Arena, index: int, number: int, error: BaseException) -> None:
        """Mark a row as failed, with the message that the model has for its caller, if any."""
        if isinstance(error, InvalidInput):
            logger.info("%s: a request was refused: %s", _model(), error)
            arena.write_bytes("out", index, number, str(error).encode()[:_REASON_BYTES])
            arena.outcome[number] = Outcome.REFUSED
        elif isinstance(error, ErrorForCaller):
            error_id = secrets.randbits(63)
            logger.error("error id %016x: %s: %s", error_id, _model(), error)
            arena.write_bytes("out", index, number, str(error).encode()[:_REASON_BYTES])
            arena.outcome[number], arena.detail[number] = Outcome.REPORTED, error_id
        else:
            arena.outcome[number], arena.detail[number] = _log_failure(error)
            self.is_doubtful = True

    def fail(self, batch: Batch, error: BaseException, started_ns: int) -> None:
        """Hand back the rows of a batch that failed, and log why."""
        outcome, error_id = _log_failure(error)
        for block in batch.blocks:
            lane = batch.lanes[block.lane]
            lane.check_consumer()
            lane.arena.done[block.numbers] = (outcome, started_ns, self._clock_ns(), error_id)
            lane.send(block.numbers)

    def expire(self, batch: Batch) -> None:
        """Hand back the rows of a batch whose deadline has passed."""
        for block in batch.blocks:
            batch.lanes[block.lane].hand_back(block.numbers, Outcome.EXPIRED, self._clock_ns())


def _log_failure(error: BaseException) -> tuple[Outcome, int]:
    """Log why rows have no answer; returns the message for their callers, and the id of the log record."""
    error_id = secrets.randbits(63)
    if isinstance(error, OutOfMemory):
        logger.error(
            "error id %016x: %s: the device has no memory for it", error_id, _model(), exc_info=error
        )
        return Outcome.OUT_OF_MEMORY, error_id
    logger.error("error id %016x: %s: scoring failed", error_id, _model(), exc_info=error)
    return Outcome.FAILED, error_id


def _model() -> str:
    """Return the model's name, as in the name of its thread."""
    return threading.current_thread().name
