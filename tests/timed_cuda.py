"""A puppet of a GPU by the real clock: copies and graphs take the times that were measured on a card."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tests.cuda_ipc_puppets import pointee
from tests.cuda_puppets import PuppetCudart, copies_of_batch

from stoker.runtimes.base import Runtime
from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.pipeline import BatchSet, PipelinedExecution

__all__ = ["CardTimes", "on_timed_card"]

_SIZES = (1, 8)


class CardTimes(NamedTuple):
    """The times of a model on a card.

    Attributes:
        launch_us: Processor time of the call that launches a graph, before which the device does not compute.
        copy_in_us, copy_out_us: Of one row.
        compute_us: Of any batch.
    """

    launch_us: float
    copy_in_us: float
    compute_us: float
    copy_out_us: float

    @property
    def alone_us(self) -> float:
        """The runtime's own time for one row."""
        return self.copy_in_us + self.compute_us + self.copy_out_us


class _Cudart(PuppetCudart):
    """Copies at once, and says that a copy is done when a card would have done it."""

    def __init__(self, times: CardTimes) -> None:
        super().__init__(limit_bytes=1 << 30)
        self._times = times
        self._ends_ns: dict[int, int] = {}
        self._passes_ns: dict[int, int] = {}

    def launch(self, stream: int, us: float) -> None:
        """Have the device work for some time, behind what else is in a stream."""
        self._ends_ns[stream] = self._free_ns(stream) + round(us * 1e3)

    def _free_ns(self, stream: int) -> int:
        return max(self._ends_ns.get(stream, 0), time.perf_counter_ns())

    def _cudaMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> int:  # noqa: N802
        # The time that this process needs to move them is part of the card's.
        self.launch(stream, self._times.copy_in_us if kind == 1 else self._times.copy_out_us)
        ctypes.memmove(to, source, size)
        return 0

    def _cudaMemcpyBatchAsync(  # noqa: N802
        self, to: int, sources: int, sizes: int, count: int, *others: Any
    ) -> int:
        stream: int = others[-1]
        self.launch(stream, self._times.copy_in_us)
        for copy in copies_of_batch(to, sources, sizes, count):
            ctypes.memmove(*copy)
        return 0

    def _cudaMemsetAsync(self, to: int, value: int, size: int, stream: int) -> int:  # noqa: N802
        ctypes.memset(to, value, size)
        return 0

    def _cudaEventRecord(self, event: int, stream: int) -> int:  # noqa: N802
        self._passes_ns[event] = self._free_ns(stream)
        return 0

    def _cudaStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:  # noqa: N802
        self._ends_ns[stream] = max(self._free_ns(stream), self._passes_ns[event])

    def _cudaEventQuery(self, event: int) -> int:  # noqa: N802
        return 0 if time.perf_counter_ns() >= self._passes_ns[event] else 600

    def _cudaEventSynchronize(self, event: int) -> int:  # noqa: N802
        return _wait_until(self._passes_ns[event])

    def _cudaStreamSynchronize(self, stream: int) -> int:  # noqa: N802
        return _wait_until(self._ends_ns.get(stream, 0))

    def _cudaEventElapsedTime(self, out: Any, start: int, end: int) -> int:  # noqa: N802
        pointee(out).value = (self._passes_ns[end] - self._passes_ns[start]) / 1e6
        return 0


def _wait_until(at_ns: int) -> int:
    time.sleep(max(0, at_ns - time.perf_counter_ns()) / 1e9)
    return 0


class _Graphs:
    """A model whose first output is as many first elements of its first input."""

    shares_memory = True

    def __init__(self, cudart: _Cudart, times: CardTimes) -> None:
        self._cudart, self._times = cudart, times

    def open(self, size: int, stream: int) -> None:
        pass

    def capture(self, size: int, sets: Sequence[BatchSet], stream: int) -> Sequence[Callable[[], None]]:
        return [self._capture_for(batch_set, size, stream) for batch_set in sets]

    def release(self, size: int) -> None:
        pass

    def _capture_for(self, batch_set: BatchSet, size: int, stream: int) -> Callable[[], None]:
        read, written = (
            _on_device(staged.device_address, (size, *staged.host.shape[1:]), staged.host.dtype)
            for staged in (batch_set.inputs[0], batch_set.outputs[0])
        )
        read = read.reshape(size, -1)[:, : written.shape[1]]

        def begin() -> None:
            launched_ns = time.perf_counter_ns() + round(self._times.launch_us * 1e3)
            np.copyto(written, read, casting="unsafe")
            while time.perf_counter_ns() < launched_ns:
                pass
            self._cudart.launch(stream, self._times.compute_us)

        return begin


def _on_device(address: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    memory = (ctypes.c_ubyte * (int(np.prod(shape)) * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)


def on_timed_card(runtime: Runtime, times: CardTimes) -> PipelinedExecution:
    """Have a model run on the puppet."""
    cudart = _Cudart(times)
    graphs = _Graphs(cudart, times)
    return PipelinedExecution("card", runtime.signature, CudaRuntime(cudart), graphs, _SIZES, max(_SIZES), 2)
