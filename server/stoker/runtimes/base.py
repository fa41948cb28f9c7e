"""What a device process needs of a runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np

from stoker.isolation.audit import BatchMonitor
from stoker.tensors import Signature

GPU_INSTANCES: Final = 2
"""Batches at the same time on a GPU where the deployment does not say: one is copied while one is computed."""


class OutOfMemory(Exception):
    """The device had no memory for a batch; a smaller one may fit."""


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Stands in a variable output for a row that failed while the others of its batch did not.

    Attributes:
        error: Why; `stoker.errors.InvalidInput` where what the caller sent is to blame, and the caller is to be told.
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
class ForkingRuntime(Runtime, Protocol):
    """A runtime that several threads can use, each through one of its own."""

    def fork(self) -> Runtime:
        """A further runtime of the same deployment, sharing its weights where it can; for the thread that calls."""
        ...


@runtime_checkable
class BufferedRuntime(Runtime, Protocol):
    """A runtime with memory of its own for inputs, such as pages that a GPU can read directly.

    A batch that lies at the start of these buffers is not copied again.
    """

    def buffers(self) -> Sequence[np.ndarray]:
        """Per input an array `[max_batch_rows, *row_shape]`; the same ones in every call."""
        ...


@runtime_checkable
class JoiningRuntime(Runtime, Protocol):
    """A runtime whose rows are whole requests, which it joins to batches itself.

    Attributes:
        monitor: Inspects those batches.
    """

    monitor: BatchMonitor

    def run_tensors(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run one batch of named tensors, as those are that it joins."""
        ...


@runtime_checkable
class RestoringRuntime(Runtime, Protocol):
    """A runtime whose model may change as it runs."""

    def restore(self) -> None:
        """Restore the state that the model had when it was loaded."""
        ...
