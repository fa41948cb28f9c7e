"""What batches of each size take, measured before a model serves, so that not even its first rows are late."""

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
    """Run a warm model twice with batches of each size that it may have; without buckets of one, two, half and all.

    Args:
        loaded: The model, on the thread that has loaded it.
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
            # Sizes without a bucket have not been run before.
            loaded.runtime.run(inputs)
            for _ in range(_TIMES):
                begun_ns = clock_ns()
                loaded.runtime.run(inputs)
                times.append((size, clock_ns() - begun_ns))
        except Exception as error:  # noqa: BLE001  # it serves all the same, and learns then
            logger.warning("a batch of %d rows could not be timed: %s", size, error)
    return times


def full_batch(loaded: LoadedModel, runtime: Runtime) -> Callable[[], None]:
    """What runs the largest batch of one of its runtimes, on the thread of that.

    Args:
        loaded: The model, whose rows are made up.
        runtime: One of its runtimes.
    """

    def run() -> None:
        runtime.run(batch_inputs(loaded, runtime, loaded.max_batch_rows))

    return run


def batch_inputs(loaded: LoadedModel, runtime: Runtime, rows: int) -> list[Any]:
    """What a batch of made-up rows is for a runtime, or of the sample's, where the runtime reads it.

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
