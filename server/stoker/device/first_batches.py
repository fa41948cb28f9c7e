"""Runs the first batches of a model, of made-up rows or its sample: to warm it up, and to time it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeGuard

import numpy as np

from stoker.arena import Arena
from stoker.device.batch_sizes import BatchSizes, timed_first
from stoker.device.loaded_model import LoadedModel
from stoker.errors import LoadFailed
from stoker.runtimes.base import (
    BufferedRuntime,
    OutOfMemory,
    PipelinedRuntime,
    Runtime,
)
from stoker.samples.sample import first_rows
from stoker.system.resources import require_memory
from stoker.system.wording import format_count
from stoker.tensors import check_batch

logger = logging.getLogger(__name__)

TIMED_RUNS: Final = 3
_TIMES: Final = 2


def is_pipelined(runtime: Runtime) -> TypeGuard[PipelinedRuntime]:
    """Whether batches of a runtime are begun one behind the other, not run."""
    return isinstance(runtime, PipelinedRuntime) and runtime.signature.takes == "rows"


def warm_up(
    runtime: Runtime,
    name: str,
    max_batch_rows: int,
    sizes: BatchSizes,
    sample: Mapping[str, np.ndarray] | None,
    runs: int,
) -> int:
    """Run batches of the sample or of zeros of each size, the largest first, whose memory is enough for all others.

    Returns:
        The most rows for which the device has memory.
    """
    most = max_batch_rows
    todo = sorted({size for size in sizes.buckets or (1, most) if size <= most}, reverse=True)
    while todo:
        try:
            for _ in range(runs):
                _run_first(runtime, name, todo[0], sample)
        except OutOfMemory as error:
            smaller = sizes.smaller(todo[0])
            if smaller is None:
                raise LoadFailed(f"the device has no memory for one row of {name}: {error}") from error
            logger.warning(
                "%s: the device has no memory for a batch of %d rows; max_batch_rows is %d: %s",
                name,
                todo[0],
                smaller,
                error,
            )
            most = smaller
            todo = [smaller, *(size for size in todo if size < smaller)]
        else:
            del todo[0]
    return most


def time_full_batch(runtime: Runtime, name: str, rows: int, sample: Mapping[str, np.ndarray] | None) -> float:
    """Run a full batch again, now without first-time costs; returns the seconds that it took."""
    begun = time.perf_counter()
    try:
        if is_pipelined(runtime):
            return time_batches(runtime, rows, sample, 1)[0] / 1e9
        _run_first(runtime, name, rows, sample)
    except OutOfMemory:
        # A batch that fits only sometimes is found out while serving.
        return 0.0
    return time.perf_counter() - begun


def run_larger_batches(loaded: LoadedModel, name: str, most: int, goes_on: Callable[[], bool]) -> None:
    """Run batches of more rows than a deployment was loaded with, each twice as large as the one before.

    Args:
        loaded: The deployment, on the CPU.
        most: Rows of the largest batch.
        goes_on: Called before each; False stops.

    Raises:
        LoadFailed: One of them fails; the message names the largest number of rows that works.
    """
    good = loaded.max_batch_rows
    while loaded.signature.takes == "rows" and good < most and goes_on():
        rows = min(2 * good, most)
        try:
            _run_first(loaded.runtime, name, rows, loaded.sample)
        except OutOfMemory:
            # A server would use smaller batches then.
            return
        except LoadFailed as error:
            raise LoadFailed(f"{error}; serve it with max_batch_rows of at most {good}") from error
        good = rows


def _run_first(runtime: Runtime, name: str, rows: int, sample: Mapping[str, np.ndarray] | None) -> None:
    fixed = [spec for spec in (*runtime.signature.inputs, *runtime.signature.outputs) if not spec.variable]
    try:
        require_memory(
            rows * sum(spec.row_bytes for spec in fixed), f"a batch of {format_count(rows, 'row')}"
        )
    except MemoryError as error:
        raise OutOfMemory(str(error)) from error
    inputs = batch_inputs(runtime, rows, sample)
    try:
        outputs: Any = runtime.run(inputs)
        for spec, batch in zip(runtime.signature.outputs, outputs, strict=True):
            if not spec.variable:
                check_batch(spec, batch, rows)
    except OutOfMemory:
        raise
    except Exception as error:
        source = "zeros" if sample is None else "its sample input"
        batch = format_count(rows, "row")
        raise LoadFailed(f"{name} fails on a batch of {batch} of {source}: {error}") from error


def first_times(
    loaded: LoadedModel, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> list[tuple[int, int]]:
    """Run a warm model twice with batches of each allowed size; without buckets, of one, two, half and all rows.

    Args:
        loaded: The model; called on the thread that has loaded it.

    Returns:
        Rows and nanoseconds of each batch; none of models whose rows are not made up.
    """
    if loaded.runtime.signature.takes != "rows":
        return []
    times = []
    for size in timed_first(loaded.sizes.buckets, loaded.max_batch_rows):
        try:
            # Sizes that are not buckets have not been run before.
            _, *warm_ns = time_batches(loaded.runtime, size, loaded.sample, 1 + _TIMES, clock_ns)
            times += [(size, elapsed_ns) for elapsed_ns in warm_ns]
        except Exception as error:  # noqa: BLE001  # it serves all the same, and learns then
            logger.warning("a batch of %d rows could not be timed: %s", size, error)
    return times


def time_batches(
    runtime: Runtime,
    rows: int,
    sample: Mapping[str, np.ndarray] | None,
    runs: int,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> list[int]:
    """Compute batches of made-up rows, or of the sample's; returns how long each took, in nanoseconds.

    Where batches are begun one behind the other, the time is that of the computation alone.

    Args:
        runtime: A runtime of a model whose signature takes `rows`, none of whose batches is in flight.
        rows: How many rows a batch has.
        sample: Rows that the model is known to answer; None for zeros.
        runs: How many batches.
    """
    taken_ns = []
    if is_pipelined(runtime) and rows in runtime.sizes:
        with _arena_of(runtime, first_rows(runtime.signature.inputs, rows, sample), rows) as arena:
            for _ in range(runs):
                flight = runtime.begin([(arena, np.arange(rows, dtype=np.uint32))], rows, rows)
                try:
                    flight.result()
                finally:
                    flight.release()
                taken_ns.append(flight.computed_ns)
        return taken_ns
    inputs = batch_inputs(runtime, rows, sample)
    for _ in range(runs):
        begun_ns = clock_ns()
        runtime.run(inputs)
        taken_ns.append(clock_ns() - begun_ns)
    return taken_ns


@contextmanager
def _arena_of(runtime: PipelinedRuntime, inputs: Iterable[np.ndarray], rows: int) -> Iterator[Arena]:
    """An arena with these rows, attached within the context."""
    fd = Arena.create(runtime.signature, rows)
    try:
        arena = Arena(fd, runtime.signature, rows)
    finally:
        os.close(fd)
    for array, given in zip(arena.inputs, inputs, strict=True):
        array[:] = given
    runtime.attach(arena)
    try:
        yield arena
    finally:
        runtime.detach(arena)


def full_batch(loaded: LoadedModel, runtime: Runtime) -> Callable[[], None]:
    """Return a function that runs the largest batch on one of the model's runtimes, on that runtime's thread.

    Args:
        loaded: The model, which takes rows of fixed shape.
        runtime: One of its runtimes.
    """
    rows = loaded.sizes.buckets[-1] if loaded.sizes.buckets else loaded.max_batch_rows

    def run() -> None:
        runtime.run(batch_inputs(runtime, rows, loaded.sample))

    return run


def batch_inputs(runtime: Runtime, rows: int, sample: Mapping[str, np.ndarray] | None) -> list[Any]:
    """Return the inputs of a batch of made-up rows, or of the sample's, in the runtime's own buffers if it has any.

    Args:
        runtime: A runtime of a model whose signature takes `rows`.
        rows: How many.
        sample: Rows that the model is known to answer; None for zeros.
    """
    inputs: list[Any] = first_rows(runtime.signature.inputs, rows, sample)
    if isinstance(runtime, BufferedRuntime):
        for buffer, array in zip(runtime.buffers(), inputs, strict=True):
            buffer[:rows] = array
        inputs = [buffer[:rows] for buffer in runtime.buffers()]
    return inputs
