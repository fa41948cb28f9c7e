"""A model instance: runs batches with one runtime, on one thread.

It gathers, runs and scatters, and handles failures. The work per batch is vectorised; there is no Python object for
a request here.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from stoker.arena import Arena, Outcome, gather
from stoker.device.batch_sizes import BatchCap, BatchSizes
from stoker.device.lanes import Batch, Lane
from stoker.device.loading import Canary
from stoker.device.row_blocks import RowBlock
from stoker.device.threaded_copies import LARGE_BYTES, ThreadedCopies
from stoker.errors import InvalidInput, ScoringTimeout
from stoker.isolation.audit import AuditedRows, AuditResult, BatchMonitor, audit
from stoker.metrics.counters import packed_facts
from stoker.runtimes.base import (
    BufferedRuntime,
    ErrorForCaller,
    JoiningRuntime,
    OutOfMemory,
    RowFailure,
    Runtime,
)
from stoker.tensors import TensorSpec, all_finite, check_batch, finite_rows

# Copies rows of many frontends into the arrays of one batch.


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


logger = logging.getLogger(__name__)

_REASON_BYTES: Final = 1000
_LARGE_ROW_BYTES: Final = 16_384
"""Reading a row of this size takes longer than a call for each row does."""
# numpy converts plain integers several times faster than members of an IntEnum.
_OK: Final = int(Outcome.OK)


class NotFinite(Exception):
    """Rows of a batch hold NaN or infinities, so it was not run; `finite`, `bool[rows]`, says which rows do not."""

    def __init__(self, finite: np.ndarray) -> None:
        super().__init__()
        self.finite = finite


class Instance:
    """Runs batches; belongs to the thread for which its runtime was made.

    Attributes:
        run_began_ns: When the present run started; 0 if none is running. May be read on any thread.
        padding_rows: How many padding rows its batches have had in total.
        monitor: Which checks are made on its batches.
    """

    def __init__(
        self,
        runtime: Runtime,
        sizes: BatchSizes,
        cap: BatchCap,
        alone: Callable[[], AbstractContextManager[None]],
        canary: Canary | None,
        clock_ns: Callable[[], int],
    ) -> None:
        """Make the buffers.

        Args:
            sizes: The allowed sizes of batches.
            cap: The largest size now, shared with the other instances of the model.
            alone: Makes a context in which no other instance of the model runs a batch.
            canary: Checks whether the device still works.
        """
        self.run_began_ns = 0
        self.padding_rows = 0
        self._runtime = runtime
        self._sizes = sizes
        self._cap = cap
        self._alone = alone
        self._canary = canary
        self._clock_ns = clock_ns
        signature = runtime.signature
        self._inputs, self._outputs = signature.inputs, signature.outputs
        self._float_inputs, self._float_outputs = map(_floats, (signature.inputs, signature.outputs))
        isolation = signature.isolation
        self._separates = isolation is not None and isolation.non_finite_apart and signature.takes == "rows"
        self._joins = isinstance(runtime, JoiningRuntime)
        self.monitor = runtime.monitor if isinstance(runtime, JoiningRuntime) else BatchMonitor()
        # A caller whose deadline has passed is told whether the script had begun.
        self._tells_start = signature.takes == "body"
        self._gathering = Gathering(runtime, cap.rows, ThreadedCopies(clock_ns), fills=bool(sizes.buckets))
        self._doubtful = self._checked = False

    def run(self, batch: Batch, started_ns: int) -> None:
        """Run a batch that left the queue at `started_ns`, and hand all of its rows back."""
        self._doubtful = self._checked = False
        self._run(batch, started_ns, alone=False)
        if self._doubtful:
            self._check_once()

    def check_device(self) -> None:
        """Run the canary, if there is one."""
        if self._canary is not None:
            self.run_began_ns = self._clock_ns()
            self._canary.check(self._runtime)
            self.run_began_ns = 0

    def audit(self, taken: AuditedRows, noise: float) -> AuditResult:
        """Run rows of an earlier batch again, on this thread; see `stoker.isolation.audit.audit`."""
        runtime = self._runtime

        def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            self.run_began_ns = self._clock_ns()
            try:
                if isinstance(runtime, JoiningRuntime):
                    return runtime.run_tensors(feeds)
                outputs: Sequence[Any] = runtime.run(self._gathering.lay_out(feeds))
            finally:
                self.run_began_ns = 0
            return {spec.name: array for spec, array in zip(self._outputs, outputs, strict=True)}

        return audit(run, taken, noise)

    def _check_once(self) -> None:
        """Run the canary, but only once per batch."""
        if not self._checked:
            self._checked = True
            self.check_device()

    def _run(self, batch: Batch, started_ns: int, *, alone: bool) -> None:
        """Run rows as one batch. If it fails, its halves are run, so that only rows that fail alone fail."""
        cap_rows = self._cap.rows
        if batch.rows > cap_rows:
            for part in batch.split(cap_rows):
                self._run(part, started_ns, alone=alone)
            return
        failure = self._try(batch, started_ns)
        if failure is not None:
            self._run_parts(batch, started_ns, failure, cap_rows, alone=alone)

    def _run_parts(
        self, batch: Batch, started_ns: int, failure: BaseException, cap_rows: int, *, alone: bool
    ) -> None:
        """Answer a batch that has failed under the cap `cap_rows`."""
        if isinstance(failure, NotFinite):
            for part in batch.apart(failure.finite):
                self._run(part, started_ns, alone=alone)
            return
        if isinstance(failure, ScoringTimeout):
            # Running parts of it would take as long, for callers whose deadline has passed.
            logger.error("%s: a batch of %d rows took too long", _model(), batch.rows, exc_info=failure)
            for block in batch.blocks:
                batch.lanes[block.lane].hand_back(block.numbers, Outcome.EXPIRED, self._clock_ns())
            return
        if isinstance(failure, OutOfMemory):
            self._run_smaller(batch, started_ns, failure, cap_rows, alone=alone)
            return
        if not isinstance(failure, InvalidInput):
            # Before a row is blamed, and its caller told so.
            self._check_once()
        if batch.rows == 1:
            self._fail(batch, failure, started_ns)
            return
        for half in batch.split(-(-batch.rows // 2)):
            self._run(half, started_ns, alone=alone)

    def _run_smaller(
        self, batch: Batch, started_ns: int, failure: OutOfMemory, cap_rows: int, *, alone: bool
    ) -> None:
        """Run in parts a batch that did not fit into memory, while no other batch of the model uses memory."""
        size = self._sizes.filled(batch.rows)
        smaller = self._sizes.smaller(size)
        if alone and smaller is None:
            self._fail(batch, failure, started_ns)
            self._check_once()
            return
        self._cap.halve(cap_rows)
        with nullcontext() if alone else self._alone():
            for part in batch.split(min(self._cap.rows, smaller or size)):
                self._run(part, started_ns, alone=True)

    def _try(self, batch: Batch, started_ns: int) -> BaseException | None:
        blocks, rows, lanes = batch.blocks, batch.rows, batch.lanes
        size = self._sizes.filled(rows)
        try:
            inputs = self._gathering.batch(
                [(lanes[block.lane].arena, block.numbers) for block in blocks], rows, size
            )
            if self._separates and rows > 1:
                finite = finite_rows([inputs[index][:rows] for index in self._float_inputs], rows)
                if finite is not None:
                    return NotFinite(finite)
            if self._tells_start:
                for block in blocks:
                    lanes[block.lane].arena.started_ns[block.numbers] = started_ns
            self.run_began_ns = self._clock_ns()
            outputs: Sequence[Any] = self._runtime.run(inputs)
            self.run_began_ns = 0
            checked = [
                _check_texts(array, size) if spec.variable else check_batch(spec, array, size)
                for spec, array in zip(self._outputs, outputs, strict=True)
            ]
        except BaseException as error:  # noqa: BLE001  # whatever the model raises is told to its caller
            self.run_began_ns = 0
            return error
        if not self._joins:
            self._look(batch, inputs, checked, size)
        self._scatter_all(batch, checked, size, started_ns)
        return None

    def finish(
        self, batch: Batch, outputs: Sequence[Any], size: int, started_ns: int
    ) -> BaseException | None:
        """Hand back the rows of a batch that the device has computed from rows in the arenas.

        Args:
            batch: The batch.
            outputs: Its outputs, `[size, ...]` each.
            size: The size of the batch with its padding.
            started_ns: When its computation began.

        Returns:
            Why its rows were not handed back; None if they were.
        """
        try:
            checked = [
                check_batch(spec, array, size) for spec, array in zip(self._outputs, outputs, strict=True)
            ]
        except Exception as error:  # noqa: BLE001  # a model may give anything
            return error
        self._look(batch, None, checked, size)
        self._scatter_all(batch, checked, size, started_ns)
        return None

    def recover(self, batch: Batch, started_ns: int, failure: BaseException, cap_rows: int) -> None:
        """Answer a batch that has failed in flight under the cap `cap_rows`, by running its parts."""
        self._doubtful = self._checked = False
        self._run_parts(batch, started_ns, failure, cap_rows, alone=False)

    def find_non_finite(self, batch: Batch) -> NotFinite | None:
        """Find the rows of a batch that hold NaN or infinities, if its model needs them apart."""
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

    def _look(self, batch: Batch, inputs: list[Any] | None, outputs: list[Any], size: int) -> None:
        """Check a batch before its rows are handed back; without `inputs` they are copied if they are needed."""
        rows = batch.rows
        for index in self._float_outputs:
            if not all_finite(outputs[index]):
                inputs = inputs or self._copied_inputs(batch, size)
                self._look_closer(inputs, outputs, rows)
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

    def _look_closer(self, inputs: list[Any], outputs: list[Any], rows: int) -> None:
        """Find the rows of a batch whose answers are not finite; padding does not count."""
        self.monitor.count_non_finite(
            [inputs[index][:rows] for index in self._float_inputs],
            [outputs[index][:rows] for index in self._float_outputs],
            rows,
        )

    def _scatter_all(self, batch: Batch, outputs: list[Any], size: int, started_ns: int) -> None:
        blocks, rows, lanes = batch.blocks, batch.rows, batch.lanes
        facts = packed_facts(rows, size, batch.reason, blocks)
        if size > rows:
            self.padding_rows += size - rows
        elif len(blocks) == 1:
            self._scatter(lanes[blocks[0].lane], blocks[0], outputs, started_ns, facts)
            return
        start = 0
        for block in blocks:
            stop = start + block.rows
            self._scatter(
                lanes[block.lane], block, [array[start:stop] for array in outputs], started_ns, facts
            )
            start = stop

    def _scatter(self, lane: Lane, block: RowBlock, outputs: list[Any], started_ns: int, facts: int) -> None:
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
            self._doubtful = True

    def _fail(self, batch: Batch, error: BaseException, started_ns: int) -> None:
        outcome, error_id = _log_failure(error)
        for block in batch.blocks:
            lane = batch.lanes[block.lane]
            lane.check_consumer()
            lane.arena.done[block.numbers] = (outcome, started_ns, self._clock_ns(), error_id)
            lane.send(block.numbers)


class PackedInstance(Instance):
    """An instance in a process of several models: if that crashes, the supervisor can tell which of them ran."""

    def __init__(self, run_began: memoryview, runtime: Runtime, **options: Any) -> None:
        """Make it with a word of shared memory; see `Instance` for the other arguments."""
        self._run_began = run_began
        super().__init__(runtime, **options)

    @property
    def run_began_ns(self) -> int:
        """See `Instance`."""
        began_ns: int = self._run_began[0]
        return began_ns

    @run_began_ns.setter
    def run_began_ns(self, value: int) -> None:
        self._run_began[0] = value


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
    """The model's name, as in the name of its thread."""
    return threading.current_thread().name


def _check_texts(texts: Sequence[Any], rows: int) -> Sequence[Any]:
    if len(texts) != rows:
        raise ValueError(f"{len(texts)} answers came for a batch of {rows}")
    return texts


def _floats(specs: Sequence[TensorSpec]) -> list[int]:
    """The indices of tensors that may hold NaN and infinities."""
    return [i for i, spec in enumerate(specs) if not spec.variable and spec.kind == "f"]
