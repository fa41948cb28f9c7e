"""The interface between a device process and its runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct

from stoker.arena import Arena
from stoker.deployment import Deployment
from stoker.isolation.batch_monitor import BatchMonitor
from stoker.runtimes.token_batches import TokenCosts
from stoker.tensors import Signature

PROBE_ROWS: Final = (2, 1, 3)
"""Rows of the batches that show a model's outputs. An axis that has one of these lengths by chance has not all."""
GPU_INSTANCES: Final = 2
"""The default of concurrent batches on a GPU: one is copied while another is computed."""


def powers_of_two(max_batch_rows: int) -> tuple[int, ...]:
    """Return the powers of two below `max_batch_rows`, and `max_batch_rows` itself."""
    return (*(1 << power for power in range((max_batch_rows - 1).bit_length())), max_batch_rows)


def likely_sizes(deployment: Deployment) -> tuple[int, ...]:
    """Return the likely sizes of batches: the buckets of the settings, or powers of two if the load chooses."""
    if deployment.batch_buckets is None:
        return powers_of_two(deployment.max_batch_rows)
    return deployment.batch_buckets or (deployment.max_batch_rows,)


class OutOfMemory(Exception):
    """The device had no memory for a batch; a smaller one may fit."""


class ErrorForCaller(Exception):
    """A model's message for the caller of a failed request."""


class RowFailure(Struct, frozen=True):
    """An item of a variable output for a row that failed while others of its batch did not.

    Attributes:
        error: The error. The caller gets the message of an `ErrorForCaller`, and of a `stoker.errors.InvalidInput`,
            which blames the request.
    """

    error: BaseException


Outputs = Sequence["np.ndarray | Sequence[bytes | RowFailure]"]
"""Per output an array `[rows, *row_shape]`, or for a variable output one item per row."""


class Runtime(Protocol):
    """A loaded deployment. One thread at a time calls `run`."""

    signature: Signature

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Run one batch.

        Args:
            inputs: Per input an array `[rows, *row_shape]`, valid only during the call; for a variable
                input one `bytes` per row.

        Raises:
            OutOfMemory: The device had no memory for the batch.
            Exception: The whole batch failed; the caller may try it again in parts.
        """
        ...


@runtime_checkable
class ChosenRuntime(Runtime, Protocol):
    """A runtime that was chosen among several executions of its model.

    Attributes:
        choice: The execution in words for the log; empty if there was no choice.
    """

    choice: str


@runtime_checkable
class ForkingRuntime(Runtime, Protocol):
    """A runtime that several threads can use, each with a fork of its own."""

    def fork(self) -> Runtime:
        """Return another runtime of the same deployment for the calling thread; it shares weights if possible."""
        ...


@runtime_checkable
class BufferedRuntime(Runtime, Protocol):
    """A runtime with memory of its own for inputs, such as pages that a GPU can read directly.

    A batch that lies at the start of these buffers is not copied again.
    """

    def buffers(self) -> Sequence[np.ndarray]:
        """Return per input an array `[max_batch_rows, *row_shape]`; the same arrays in every call."""
        ...


@runtime_checkable
class JoiningRuntime(Runtime, Protocol):
    """A runtime whose rows are whole requests, which it joins to batches itself.

    Attributes:
        monitor: Inspects those batches.
    """

    monitor: BatchMonitor

    def run_tensors(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run one batch of joined tensors by name."""
        ...


@runtime_checkable
class TokenRuntime(Runtime, Protocol):
    """A runtime of rows of tokens.

    Attributes:
        costs: How long it computes, by tokens; None if its rows run alone, or have one length.
        instances: How many batches it runs at the same time on a CPU.
    """

    costs: TokenCosts | None
    instances: int


@runtime_checkable
class RestoringRuntime(Runtime, Protocol):
    """A runtime whose model may change as it runs."""

    def restore(self) -> None:
        """Restore the state that the model had when it was loaded."""
        ...


class BatchInFlight(Protocol):
    """A batch on its way through the device; any thread may wait for it and release it.

    Attributes:
        computed_ns: How long the device computed it, without copies and waiting; known once `result` has returned.
    """

    computed_ns: int

    def is_done(self) -> bool:
        """Whether `result` would return or raise at once."""
        ...

    def result(self) -> Outputs:
        """Wait for the answers and return them, in memory of the host that is valid until `release`.

        They include the padding of the batch.

        Raises:
            OutOfMemory: The device had no memory for the batch.
            Exception: The whole batch failed; the caller may try it again in parts.
        """
        ...

    def release(self) -> None:
        """Free the batch's inputs and outputs for another batch; call it once, also after a failure."""
        ...


@runtime_checkable
class PipelinedRuntime(Runtime, Protocol):
    """A runtime that takes the next batch while the device computes the current one.

    The thread that has loaded it calls all methods, and `run` only while no batch is in flight.

    Attributes:
        depth: The largest number of batches in flight.
        sizes: The sizes of batches that `begin` takes, ascending.
    """

    depth: int
    sizes: Sequence[int]

    def attach(self, arena: Arena) -> None:
        """Prepare to read batches from an arena."""
        ...

    def detach(self, arena: Arena) -> None:
        """Release an arena, which no batch in flight reads."""
        ...

    def begin(self, blocks: Sequence[tuple[Arena, np.ndarray]], rows: int, size: int) -> BatchInFlight:
        """Start a batch without waiting for the device, which computes batches in order.

        Errors of the device are raised by `result` of the batch. The rows must not change until the batch is done. At
        most `depth` batches are unreleased.

        Args:
            blocks: Attached arenas, with the numbers of the rows in each.
            rows: How many rows in total.
            size: The size of the batch with its padding, one of `sizes`.
        """
        ...

    def copy_ns(self, rows: int) -> int:
        """Return the time to copy `rows` rows to the device, as measured at the load."""
        ...


@runtime_checkable
class SizedRuntime(Runtime, Protocol):
    """A runtime that is prepared for each size of its batches.

    The thread that has loaded it calls all methods but `open_size`, while no batch is in flight. While it prepares a
    size, no runtime of another kind may use the device in this process.

    Attributes:
        sizes: The sizes for which it is prepared, ascending.
    """

    sizes: Sequence[int]

    def open_size(self, rows: int) -> None:
        """Do the slow part of `add_size`, which takes seconds; on any thread, while batches of other sizes run."""
        ...

    def add_size(self, rows: int) -> int:
        """Prepare for batches of a further size.

        Returns:
            The time in which the device computes such a batch, in ns.

        Raises:
            OutOfMemory: The device has no memory for it.
            Exception: It cannot be prepared, or its answers differ from those in batches of other sizes.
        """
        ...

    def remove_size(self, rows: int) -> None:
        """Forget a size. No batch of it may begin any more."""
        ...

    def prepare_again(self) -> None:
        """Free memory of removed sizes if the device has little; this may prepare the other sizes again."""
        ...
