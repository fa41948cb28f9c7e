"""Writes the answers of a batch into the rows of the arenas, and hands the rows back."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from stoker.arena import Arena, Outcome
from stoker.device.lanes import Batch, Lane
from stoker.device.row_blocks import RowBlock
from stoker.errors import InvalidInput
from stoker.metrics.counters import packed_facts
from stoker.runtimes.base import ErrorForCaller, OutOfMemory, RowFailure
from stoker.tensors import TensorSpec

logger = logging.getLogger(__name__)

_REASON_BYTES: Final = 1000
# numpy converts plain integers several times faster than members of an IntEnum.
_OK: Final = int(Outcome.OK)


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
