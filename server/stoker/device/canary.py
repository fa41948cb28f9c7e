"""The canary of a model: one row that the model has answered, run again to see whether the device still works."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.device.batch_sizes import BatchSizes
from stoker.isolation.made_up_rows import sample_feeds
from stoker.runtimes.base import RowFailure, Runtime
from stoker.samples.sample import first_rows
from stoker.system.processes import ExitCode, end_process
from stoker.tensors import Signature
from stoker.wire.packed import pack

logger = logging.getLogger(__name__)


_TRIES: Final = 3
_TRY_AGAIN_S: Final = 0.5


def first_row(
    signature: Signature, sizes: BatchSizes, sample: Mapping[str, np.ndarray] | None = None
) -> list[Any]:
    """The inputs of a batch of one row: of the sample, or zeros; one packed request for a model of free sizes."""
    if signature.tensors is not None:
        return [[pack(sample or sample_feeds(signature.tensors.inputs, 1))]]
    return list(first_rows(signature.inputs, sizes.filled(1), sample))


class Canary:
    """Runs the row, and ends the process if that fails.

    Attributes:
        idle_ns: After this long without a batch the canary is run.
    """

    idle_ns: Final = 10_000_000_000

    def __init__(
        self,
        inputs: Sequence[Any],
        *,
        end_process: Callable[[ExitCode], None] = end_process,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep the row.

        Args:
            inputs: The row, in the form of `Runtime.run`; the model has run it successfully before.
            end_process: Ends this process, which the supervisor then restarts.
            sleep: Sleeps for some seconds.
        """
        self._inputs = inputs
        self._end_process = end_process
        self._sleep = sleep

    def check(self, runtime: Runtime) -> None:
        """Run the row on the thread of `runtime`; end the process if that fails.

        It is tried a second time first: the cause may be on another thread, such as a graph being captured, or
        memory that is about to be freed.
        """
        failure: BaseException | None = None
        for attempt in range(_TRIES):
            if attempt:
                self._sleep(_TRY_AGAIN_S)
            failure = self.failure(runtime)
            if failure is None:
                return
        logger.critical(
            "%s: the device does not even compute one row of zeros any more: the device process exits",
            threading.current_thread().name,
            exc_info=failure,
        )
        self._end_process(ExitCode.CANARY_FAILED)

    def failure(self, runtime: Runtime) -> BaseException | None:
        """Run the row once; returns why it failed, or None."""
        try:
            outputs = runtime.run(self._inputs)
        except BaseException as error:  # noqa: BLE001  # whatever the device ends in
            return error
        first = outputs[0][0]
        return first.error if isinstance(first, RowFailure) else None
