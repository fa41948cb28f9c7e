"""What batches of each size take, measured before a model serves, so that not even its first rows are late."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from stoker.device.lifecycle import LoadedModel
from stoker.isolation.samples import first_rows
from stoker.runtimes.base import BufferedRuntime, Runtime

__all__ = ["first_times", "full_batch"]

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
    signature, most = loaded.runtime.signature, loaded.max_batch_rows
    if signature.takes != "rows":
        return []
    sizes = [size for size in loaded.sizes.buckets or (1, 2, most // 2, most) if 0 < size <= most]
    times = []
    for size in sorted({*sizes}):
        try:
            inputs = _inputs(loaded, loaded.runtime, size)
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
        runtime.run(_inputs(loaded, runtime, loaded.max_batch_rows))

    return run


def _inputs(loaded: LoadedModel, runtime: Runtime, rows: int) -> list[Any]:
    inputs: list[Any] = first_rows(loaded.signature.inputs, rows, loaded.sample)
    if isinstance(runtime, BufferedRuntime):
        for buffer, array in zip(runtime.buffers(), inputs, strict=True):
            buffer[:rows] = array
        inputs = [buffer[:rows] for buffer in runtime.buffers()]
    return inputs
