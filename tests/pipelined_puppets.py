"""A puppet of a runtime with batches in flight, on a device of the test's own time, and both sides of its arenas."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import numpy as np
from tests.patience import PATIENCE_S
from tests.puppets import ROWS, HandClock, Joined, PuppetRuntime, double

from stoker.arena import Arena
from stoker.device.pipelined_worker import PipelinedWorker
from stoker.runtimes.base import OutOfMemory, Outputs
from stoker.tensors import Signature

__all__ = ["PipelinedJoined", "PuppetFlight", "PuppetPipeline", "PuppetSizes"]

_POISON = -7.0


class PuppetFlight:
    """A batch in flight; its rows are read with its result.

    Attributes:
        ends_ns: When the device has computed it.
        computed_ns: How long it computes.
    """

    def __init__(
        self, runtime: PuppetPipeline, blocks: Sequence[tuple[Arena, np.ndarray]], rows: int, size: int
    ) -> None:
        self.computed_ns = runtime.takes_ns(size)
        ready_ns = runtime.clock() + runtime.copies_ns(rows)
        self.begins_ns = max(ready_ns, runtime.free_ns)
        self.ends_ns = runtime.free_ns = self.begins_ns + self.computed_ns
        self.blocks, self.rows, self.size = blocks, rows, size
        self.released = False
        self._runtime = runtime

    def is_done(self) -> bool:
        """Whether the device has computed it; each look takes as long as the test says."""
        self._runtime.on_look()
        return self._runtime.clock() >= self.ends_ns

    def result(self) -> Outputs:
        """Let the device compute it."""
        runtime = self._runtime
        runtime.reach(self.ends_ns)
        if runtime.hold is not None:
            runtime.entered.set()
            assert runtime.hold.wait(PATIENCE_S), "the test never let the puppet go on"
        assert runtime.flights[0] is self, "batches are waited for in order"
        inputs, outputs = runtime.sets[0]
        self._copy(inputs)
        answer = runtime.compute([array[: self.size] for array in inputs])
        for array, computed in zip(outputs, answer, strict=True):
            array[: self.size] = computed
        return [array[: self.size] for array in outputs]

    def _copy(self, inputs: list[np.ndarray]) -> None:
        for index, array in enumerate(inputs):
            array[:] = 0
            start = 0
            for arena, numbers in self.blocks:
                assert arena in self._runtime.attached, "an arena has gone while a batch reads it"
                array[start : start + len(numbers)] = arena.inputs[index][numbers]
                start += len(numbers)
            assert start == self.rows

    def release(self) -> None:
        """Give its memory to the next batch."""
        assert not self.released, "a batch is released once"
        assert self._runtime.flights.popleft() is self
        self.released = True
        inputs, outputs = self._runtime.sets[0]
        for array in (*inputs, *outputs):
            array[:] = _POISON
        self._runtime.sets.rotate(-1)


class PuppetPipeline(PuppetRuntime):
    """A model with batches in flight; a test sets its behaviour.

    Attributes:
        clock: The clock of the device, of which a result waits for the end of its batch.
        depth: Most batches in flight.
        sizes: The sizes of batches that may begin.
        takes_ns: How long a batch of a size computes.
        copies_ns: How long so many rows are copied to the device.
        begin_fails: What the next `begin` raises.
        flights: Those in flight.
        attached: The arenas that may be read.
        begun: The rows of each batch in flight that there was.
        on_look: Called before it is seen whether a batch is done.
    """

    def __init__(
        self, signature: Signature = ROWS, answer: Callable[[Sequence[Any]], Outputs] = double, depth: int = 2
    ) -> None:
        super().__init__(signature, answer)
        self.clock: Callable[[], int] = HandClock()
        self.free_ns = 0
        self.depth = depth
        self.sizes: Sequence[int] = range(1, 1025)
        self.takes_ns: Callable[[int], int] = lambda _: 0
        self.copies_ns: Callable[[int], int] = lambda _: 0
        self.begin_fails: BaseException | None = None
        self.on_look: Callable[[], None] = lambda: None
        self.flights: deque[PuppetFlight] = deque()
        self.attached: set[Arena] = set()
        self.begun: list[int] = []
        self.sets = deque(
            tuple(
                [np.zeros((1024, *spec.shape), spec.dtype) for spec in side]
                for side in (signature.inputs, signature.outputs)
            )
            for _ in range(depth)
        )

    def attach(self, arena: Arena) -> None:
        """Read rows of this arena from now on."""
        assert arena not in self.attached
        self.attached.add(arena)

    def detach(self, arena: Arena) -> None:
        """Read rows of this arena no more."""
        self.attached.remove(arena)

    def begin(self, blocks: Sequence[tuple[Arena, np.ndarray]], rows: int, size: int) -> PuppetFlight:
        """Begin a batch."""
        if self.begin_fails is not None:
            failure, self.begin_fails = self.begin_fails, None
            raise failure
        assert len(self.flights) < self.depth, "there is no memory for another batch in flight"
        assert rows <= size
        assert size in self.sizes
        assert all(arena in self.attached for arena, _ in blocks)
        flight = PuppetFlight(self, list(blocks), rows, size)
        self.flights.append(flight)
        self.begun.append(rows)
        return flight

    def copy_ns(self, rows: int) -> int:
        """How long so many rows are copied."""
        return self.copies_ns(rows)

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Run one batch while none is in flight."""
        assert not self.flights, "a batch is in flight"
        return super().run(inputs)

    def compute(self, inputs: Sequence[Any]) -> Outputs:
        """Compute a batch in flight, or fail as told."""
        if self.begun and len(inputs[0]) > self.fits_rows:
            raise OutOfMemory(f"the puppet has no memory for {len(inputs[0])} rows")
        if self.fails_for.intersection(inputs[0].reshape(len(inputs[0]), -1)[:, 0].tolist()):
            raise self.failure("the puppet was told to fail: a secret of the log")
        return self.answer(inputs)

    def reach(self, at_ns: int) -> None:
        """Let the time pass until then, the test's or the real one."""
        if isinstance(self.clock, HandClock):
            self.clock.now_ns = max(self.clock.now_ns, at_ns)
        else:
            time.sleep(max(0, at_ns - self.clock()) / 1e9)


class PuppetSizes(PuppetPipeline):
    """A pipeline that is prepared for each size of its batches.

    Attributes:
        opened: The sizes for which `open_size` was called.
        add_fails: By size what `add_size` raises.
        prepared_again: The sizes for which it was prepared anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (1,)
        self.opened: list[int] = []
        self.add_fails: dict[int, BaseException] = {}
        self.prepared_again: list[Sequence[int]] = []

    def open_size(self, rows: int) -> None:
        """Note it."""
        self.opened.append(rows)

    def add_size(self, rows: int) -> int:
        """Prepare for a size."""
        assert not self.flights, "a batch is in flight"
        if rows in self.add_fails:
            raise self.add_fails[rows]
        self.sizes = (*sorted({*self.sizes, rows}),)
        return self.takes_ns(rows)

    def remove_size(self, rows: int) -> None:
        """Forget a size."""
        assert not self.flights, "a batch is in flight"
        assert rows in self.sizes
        self.sizes = tuple(size for size in self.sizes if size != rows)

    def prepare_again(self) -> None:
        """Note the sizes."""
        self.prepared_again.append(self.sizes)


class PipelinedJoined(Joined):
    """Exchanges and a worker with batches in flight, whose two threads are turned by hand.

    Attributes:
        completes: Whether a turn of the device completes all batches in flight.
    """

    completes = True

    def __init__(self, runtime: PuppetPipeline | None = None, **how: Any) -> None:
        pipeline = PuppetPipeline() if runtime is None else runtime
        super().__init__(pipeline, **how)
        pipeline.clock = self.clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.complete()
        super().__exit__(*reason)

    @property
    def pipeline(self) -> PuppetPipeline:
        """The model."""
        return cast(PuppetPipeline, self.runtime)

    def turn_device(self, instance: int = 0) -> int | None:
        """One turn of the first thread, and then of the second one if `completes`."""
        again_ns = super().turn_device(instance)
        if self.completes:
            self.complete()
        return again_ns

    def complete(self, batches: int | None = None) -> None:
        """Complete the oldest batches in flight, by default all."""
        worker = cast(PipelinedWorker, self.worker)
        while worker.flights.completions.qsize() and batches != 0:
            worker.complete()
            batches = None if batches is None else batches - 1
