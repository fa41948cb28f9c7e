"""Measures batches of each size before a model serves, so that its very first rows are scheduled in time too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from stoker.device.batch_sizes import timed_first
from stoker.device.lifecycle import LoadedModel
from stoker.isolation.samples import first_rows
from stoker.runtimes.base import BufferedRuntime, Runtime

__all__ = ["batch_inputs", "first_times", "full_batch"]

logger = logging.getLogger(__name__)

_TIMES: Final = 2


def first_times(
    loaded: LoadedModel, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> list[tuple[int, int]]:
    """Run a warm model twice with batches of each allowed size; without buckets, of one, two, half and all rows.

    Args:
        loaded: The model; called on the thread that has loaded it.
        clock_ns: The time.

    Returns:
        Rows and nanoseconds of each batch; none of models whose rows are not made up.
    """
    if loaded.runtime.signature.takes != "rows":
        return []
    times = []
    for size in timed_first(loaded.sizes.buckets, loaded.max_batch_rows):
        try:
            inputs = batch_inputs(loaded, loaded.runtime, size)
            # Sizes that are not buckets have not been run before.
            loaded.runtime.run(inputs)
            for _ in range(_TIMES):
                begun_ns = clock_ns()
                loaded.runtime.run(inputs)
                times.append((size, clock_ns() - begun_ns))
        except Exception as error:  # noqa: BLE001  # it serves all the same, and learns then
            logger.warning("a batch of %d rows could not be timed: %s", size, error)
    return times


def full_batch(loaded: LoadedModel, runtime: Runtime) -> Callable[[], None]:
    """Return a function that runs the largest batch on one of the model's runtimes, on that runtime's thread.

    Args:
        loaded: The model, which takes rows of fixed shape.
        runtime: One of its runtimes.
    """

    def run() -> None:
        runtime.run(batch_inputs(loaded, runtime, loaded.max_batch_rows))

    return run


def batch_inputs(loaded: LoadedModel, runtime: Runtime, rows: int) -> list[Any]:
    """Return the inputs of a batch of made-up rows, or of the sample's, in the runtime's own buffers if it has any.

    Args:
        loaded: The model, whose signature takes `rows`.
        runtime: One of its runtimes.
        rows: How many.
    """
    inputs: list[Any] = first_rows(loaded.signature.inputs, rows, loaded.sample)
    if isinstance(runtime, BufferedRuntime):
        for buffer, array in zip(runtime.buffers(), inputs, strict=True):
            buffer[:rows] = array
        inputs = [buffer[:rows] for buffer in runtime.buffers()]
    return inputs
