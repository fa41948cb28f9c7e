"""Batches of fixed sizes on a GPU, one computed while the next is copied: streams, events, and sets of memory.

All batches of a model run in one stream, one after the other, so that each takes its measured time. Copies to the GPU
and back have a stream each. A batch has its own set of inputs and outputs until it is released; events keep the order
of copies and computations on a set.

See decision 51.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from stoker.arena import Arena
from stoker.isolation.difference import largest_difference
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.execution_choice import TOLERANCE, check_agreement, feasible_sizes, sample_rows
from stoker.runtimes.integer_limits import Limits, check_limits
from stoker.runtimes.pinned_memory import StagedTensor
from stoker.runtimes.row_copies import Blocks, RowCopies
from stoker.tensors import Signature

logger = logging.getLogger(__name__)

_SEEDS: Final = (1, 2)
_REPLAYS: Final = 3
_MOST_REPLAYS: Final = 20
_TIMED_NS: Final = 2_000_000
"""A size is measured at least `_REPLAYS` times, and short ones up to `_MOST_REPLAYS` times or this time in all."""
_LITTLE: Final = 0.1
"""Memory is not freed while the model's part is smaller than this, relative to the free memory of the device."""


class Graphs(Protocol):
    """The execution of batches of one size: a captured graph, or kernels launched one by one.

    The thread that runs the batches calls all methods but `open`.

    Attributes:
        shares_memory: Whether sizes share working memory, which is kept until all of them are released.
    """

    shares_memory: bool

    def open(self, size: int, stream: int) -> None:
        """Do the slow part of `capture`, which takes seconds; on any thread.

        Raises:
            OutOfMemory: The device has no memory for it.
            LoadFailed: The framework cannot prepare the size.
        """
        ...

    def capture(self, size: int, sets: Sequence[BatchSet], stream: int) -> Sequence[Callable[[], None]]:
        """Capture a graph of a size for each set.

        Args:
            stream: The stream of its computation, the same in all calls.

        Returns:
            A function for each set that begins the computation of its rows.

        Raises:
            OutOfMemory: The device has no memory for it; nothing of this size is left.
            Exception: The model cannot be captured.
        """
        ...

    def release(self, size: int) -> None:
        """Free what only this size uses."""
        ...


class BatchSet:
    """The memory of one batch on the host and on the GPU, and its events.

    Attributes:
        used_rows: Per input the number of first rows that may differ from zero on the GPU.
        copied: The event that its inputs are on the GPU.
        started: The event that the GPU begins to compute it.
        computed: The event that its outputs are computed.
        done: The event that its outputs are on the host.
    """

    def __init__(self, cuda: CudaRuntime, signature: Signature, rows: int) -> None:
        """Allocate the memory; raise OutOfMemory if there is too little."""
        self.inputs = [StagedTensor(cuda, spec, rows) for spec in signature.inputs]
        self.outputs = [StagedTensor(cuda, spec, rows) for spec in signature.outputs]
        self.used_rows = [0] * len(self.inputs)
        self.copied, self.done = (_event(self, cuda, timed=False) for _ in range(2))
        self.started, self.computed = (_event(self, cuda, timed=True) for _ in range(2))


def _event(owner: object, cuda: CudaRuntime, *, timed: bool) -> int:
    event = cuda.create_event(timed=timed)
    weakref.finalize(owner, cuda.destroy_event, event).atexit = False
    return event


class CapturedBatch:
    """A batch in flight; see `BatchInFlight`."""

    def __init__(
        self, cuda: CudaRuntime, batch_set: BatchSet, size: int, release: Callable[[BatchSet], None]
    ) -> None:
        self.computed_ns = 0
        self.failure: Exception | None = None
        self._is_done = False
        self._cuda = cuda
        self._set = batch_set
        self._size = size
        self._release = release

    def is_done(self) -> bool:
        """See `BatchInFlight`."""
        if self.failure is None and not self._is_done:
            try:
                # The time is read while the outputs are copied.
                self._is_done = self._is_computed() and self._cuda.has_passed(self._set.done)
            except Exception:  # noqa: BLE001  # `result` raises it
                return True
        return self._is_done or self.failure is not None

    def _is_computed(self) -> bool:
        if not self.computed_ns and self._cuda.has_passed(self._set.computed):
            self._read_time()
        return bool(self.computed_ns)

    def _read_time(self) -> None:
        self.computed_ns = max(1, self._cuda.elapsed_ns(self._set.started, self._set.computed))

    def result(self) -> Sequence[np.ndarray]:
        """See `BatchInFlight`."""
        if self.failure is not None:
            raise self.failure
        if not self._is_done:
            self._cuda.wait_for(self._set.done)
        if not self.computed_ns:
            self._read_time()
        return [staged.host[: self._size] for staged in self._set.outputs]

    def release(self) -> None:
        """See `BatchInFlight`."""
        self._release(self._set)


class Streams:
    """The streams of one execution.

    Attributes:
        copy_in: Copies rows to the device.
        compute: Computes batches.
        copy_out: Copies outputs to the host.
    """

    def __init__(self, name: str, cuda: CudaRuntime) -> None:
        """Create the streams; `name` is the model's, for the log."""
        self._name, self._cuda = name, cuda
        self.compute, self.copy_in, self.copy_out = (self._create() for _ in range(3))

    def settle(self) -> None:
        """Wait for all streams, so that none uses the set of a failed batch."""
        for stream in (self.copy_in, self.compute, self.copy_out):
            try:
                self._cuda.synchronize(stream)
            except Exception as error:  # noqa: BLE001  # the batch has failed already
                logger.debug("%s: after a failed batch: %s", self._name, error)

    def _create(self) -> int:
        stream = self._cuda.create_stream()
        weakref.finalize(self, self._cuda.destroy_stream, stream).atexit = False
        return stream


class PipelinedExecution:
    """Batches of captured sizes; see `PipelinedRuntime`. Batches of other sizes run as the next larger one.

    It is no `BufferedRuntime`: its memory may still hold rows of `begin`. The next batch overwrites the outputs of
    `run`.
    """

    choice = "execution graph"

    def __init__(
        self,
        name: str,
        signature: Signature,
        cuda: CudaRuntime,
        graphs: Graphs,
        sizes: Sequence[int],
        max_batch_rows: int,
        depth: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        limits: Limits | None = None,
    ) -> None:
        """Prepare each size and set, on the thread that will run them: frameworks may keep graphs for each thread.

        Args:
            name: The name of the model for the log.
            graphs: Computes the batches.
            sizes: Sizes of batches in rows. Sizes for which the device has no memory are left out.
            max_batch_rows: The largest size that may be added later.
            depth: The number of sets.
            limits: The integers that inputs take, if others would break the device.

        Raises:
            OutOfMemory: The device has no memory for any size.
            LoadFailed: The framework cannot prepare a size.
            Exception: CUDA cannot capture the model.
        """
        self.signature = signature
        self.depth = depth
        self.sizes: Sequence[int] = ()
        self._name = name
        self._cuda = cuda
        self._graphs = graphs
        self._limits = limits or {}
        self._limited = {
            spec.name: index for index, spec in enumerate(signature.inputs) if spec.name in self._limits
        }
        cuda.ignore_captures()
        self._streams = Streams(name, cuda)
        self._sets = [BatchSet(cuda, signature, max(max_batch_rows, *sizes)) for _ in range(depth)]
        self._free = deque(self._sets)
        self._begins: dict[int, Sequence[Callable[[], None]]] = {}
        self._free_bytes = cuda.free_bytes()
        # Inputs may be indices, so no run must see random memory.
        self._clear_inputs()
        self._capture_all(sizes)
        self._copies = RowCopies(name, cuda, self._streams.copy_in, self._sets[0].inputs, clock_ns)
        self._clear_inputs()

    def open_size(self, rows: int) -> None:
        """See `SizedRuntime`."""
        self._cuda.ignore_captures()
        self._graphs.open(rows, self._streams.compute)

    def add_size(self, rows: int) -> int:
        """See `SizedRuntime`."""
        known = self.sizes[-1] if self.sizes else None
        self._capture(rows)
        try:
            if known is not None:
                self.check_size(rows, known)
            return self.computed_ns(rows)
        except BaseException:
            self.remove_size(rows)
            raise

    def remove_size(self, rows: int) -> None:
        """See `SizedRuntime`."""
        self.sizes = tuple(size for size in self.sizes if size != rows)
        del self._begins[rows]
        self._graphs.release(rows)

    def prepare_again(self) -> None:
        """See `SizedRuntime`."""
        free_bytes = self._cuda.free_bytes()
        taken_bytes = self._free_bytes - free_bytes
        # Preparing again takes seconds, as at the load.
        if not self._graphs.shares_memory or taken_bytes <= _LITTLE * free_bytes:
            return
        sizes = self.sizes
        for size in sizes:
            self.remove_size(size)
        self._capture_all(sizes)

    def check_size(self, size: int, known: int) -> None:
        """Raise ValueError unless a size agrees with a known one for the same rows."""
        for seed in _SEEDS:
            inputs = sample_rows(self.signature.inputs, size, seed)
            outputs = [array.copy() for array in self.run(inputs)]
            for start in range(0, size, known):
                stop = min(size, start + known)
                difference = largest_difference(
                    [array[start:stop] for array in outputs],
                    self.run([array[start:stop] for array in inputs]),
                )
                if difference > TOLERANCE:
                    raise ValueError(
                        f"outputs in batches of {size} rows differ by {difference:.2g} from those of {known}"
                    )

    def computed_ns(self, size: int) -> int:
        """Return the shortest of several times in which the device computes a batch of a size, on the first set."""
        times_ns: list[int] = []
        # Short batches are measured more often, because the launch makes their times inexact.
        while len(times_ns) < _REPLAYS or (sum(times_ns) < _TIMED_NS and len(times_ns) < _MOST_REPLAYS):
            batch = self._begin(self._free.popleft(), size, size, lambda *_: None)
            try:
                batch.result()
                times_ns.append(batch.computed_ns)
            finally:
                batch.release()
        return min(times_ns)

    def attach(self, arena: Arena) -> None:
        """See `PipelinedRuntime`."""
        self._copies.attach(arena)

    def detach(self, arena: Arena) -> None:
        """See `PipelinedRuntime`."""
        self._copies.detach(arena)

    def copy_ns(self, rows: int) -> int:
        """See `PipelinedRuntime`."""
        return self._copies.copy_ns(rows)

    def begin(self, blocks: Blocks, rows: int, size: int) -> CapturedBatch:
        """See `PipelinedRuntime`."""

        def send(batch_set: BatchSet, stream: int) -> None:
            for arena, numbers in blocks if self._limited else ():
                check_limits(
                    {name: arena.inputs[index][numbers] for name, index in self._limited.items()},
                    self._limits,
                )
            for index, staged in enumerate(batch_set.inputs):
                self._copies.send(index, staged, blocks, rows, stream)

        return self._begin(self._free.popleft(), rows, size, send)

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        check_limits({name: inputs[index] for name, index in self._limited.items()}, self._limits)
        first, rows = self._sets[0], len(inputs[0])

        def send(batch_set: BatchSet, stream: int) -> None:
            for staged, array in zip(batch_set.inputs, inputs, strict=True):
                np.copyto(staged.host[:rows], array, casting="no")
                self._cuda.copy_to_device(
                    staged.device_address, staged.host_address, rows * staged.row_bytes, stream
                )

        # No batch is in flight.
        self._free.remove(first)
        batch = self._begin(first, rows, rows, send)
        try:
            return [array[:rows] for array in batch.result()]
        finally:
            batch.release()

    def _begin(
        self, batch_set: BatchSet, rows: int, size: int, send: Callable[[BatchSet, int], None]
    ) -> CapturedBatch:
        batch = CapturedBatch(self._cuda, batch_set, size, self._free.append)
        try:
            self._start(batch_set, rows, size, send)
        except Exception as error:  # noqa: BLE001  # `result` raises it
            self._streams.settle()
            batch.failure = error
        return batch

    def _start(
        self, batch_set: BatchSet, rows: int, size: int, send: Callable[[BatchSet, int], None]
    ) -> None:
        """Begin the copies and the computation of a batch, each after what it needs."""
        captured = size if size in self._begins else next((fit for fit in self.sizes if fit >= size), None)
        if captured is None:
            raise OutOfMemory(
                f"the device had no memory to prepare batches of {size} rows when it was loaded"
            )
        cuda, streams = self._cuda, self._streams
        compute = streams.compute
        # A lone batch overlaps with no other one: in one stream it needs fewer calls.
        alone = len(self._free) == self.depth - 1
        copy_in, copy_out = (compute, compute) if alone else (streams.copy_in, streams.copy_out)
        send(batch_set, copy_in)
        self._clear_padding(batch_set, rows, captured, copy_in)
        if not alone:
            cuda.record(batch_set.copied, copy_in)
            cuda.wait_in_stream(compute, batch_set.copied)
        cuda.record(batch_set.started, compute)
        self._begins[captured][self._sets.index(batch_set)]()
        cuda.record(batch_set.computed, compute)
        if not alone:
            cuda.wait_in_stream(copy_out, batch_set.computed)
        for staged in batch_set.outputs:
            cuda.copy_to_host(staged.host_address, staged.device_address, size * staged.row_bytes, copy_out)
        cuda.record(batch_set.done, copy_out)

    def _clear_inputs(self) -> None:
        for batch_set in self._sets:
            for staged in batch_set.inputs:
                self._cuda.fill_with_zeros(staged.device_address, staged.host.nbytes, self._streams.compute)
        self._cuda.synchronize(self._streams.compute)

    def _clear_padding(self, batch_set: BatchSet, rows: int, size: int, stream: int) -> None:
        """Set the padding rows to zeros if earlier batches have used them."""
        for index, staged in enumerate(batch_set.inputs):
            used = batch_set.used_rows[index]
            if used > rows and size > rows:
                self._cuda.fill_with_zeros(
                    staged.device_address + rows * staged.row_bytes, (used - rows) * staged.row_bytes, stream
                )
                used = rows
            batch_set.used_rows[index] = max(used, rows)

    def _capture(self, size: int) -> None:
        self._begins[size] = self._graphs.capture(size, self._sets, self._streams.compute)
        # Other threads read `sizes`, so the tuple is replaced.
        self.sizes = tuple(sorted(self._begins))

    def _capture_all(self, sizes: Sequence[int]) -> None:
        # The largest is first: its memory is enough for the others that share it.
        reason = ""
        for size in sorted(sizes, reverse=True):
            try:
                self._capture(size)
            except OutOfMemory as error:
                # The error itself would keep its frames, and what they have allocated.
                reason = str(error)
                logger.warning(
                    "%s: the device has no memory to prepare batches of %d rows: %s", self._name, size, reason
                )
        if not self._begins:
            raise OutOfMemory(reason)


def check_pipeline(name: str, pipeline: PipelinedExecution, plain: Runtime) -> None:
    """Raise ValueError unless all sizes agree with plain calls, and OutOfMemory if plain calls have no memory."""
    known = feasible_sizes(name, plain, pipeline.sizes)
    if not known:
        raise OutOfMemory("the device has no memory for plain calls to compare with")
    check_agreement(pipeline, plain, known)
    for size in pipeline.sizes[len(known) :]:
        pipeline.check_size(size, known[-1])
