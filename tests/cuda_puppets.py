"""Puppets of a GPU: a CUDA runtime whose device memory is this process's, and a session that computes in it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from tests.cuda_ipc_puppets import PuppetLibrary

from stoker.tensors import Signature, TensorSpec

__all__ = [
    "DOUBLES",
    "NO_MEMORY",
    "PuppetBinding",
    "PuppetCudart",
    "PuppetRows",
    "PuppetSession",
    "address_of",
]

DOUBLES = Signature((TensorSpec("x", "float32", (3,)),), (TensorSpec("y", "float32", (3,)),))
"""Of the puppets: y = 2 x."""

NO_MEMORY = "Failed to allocate memory for requested buffer of size 4096"


def address_of(array: np.ndarray) -> int:
    """Where the first element of an array lies."""
    return int(array.ctypes.data)


class PuppetCudart(PuppetLibrary):
    """`libcudart`, as far as it is used. `calls` has what was called, in order.

    Attributes:
        limit_bytes: How much device memory there is.
    """

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.limit_bytes = limit_bytes
        self.host: dict[int, Any] = {}
        self.device: dict[int, Any] = {}
        self.streams = 0
        self.pending: list[tuple[int, int, int]] = []
        self.cleared = 0
        super().__init__(
            "cudaHostAlloc",
            "cudaFreeHost",
            "cudaMalloc",
            "cudaFree",
            "cudaStreamCreateWithFlags",
            "cudaStreamDestroy",
            "cudaMemcpyAsync",
            "cudaStreamSynchronize",
            "cudaGetLastError",
            "cudaGetErrorString",
        )

    def _cudaHostAlloc(self, out: Any, size: int, flags: int) -> None:  # noqa: N802
        memory = ctypes.create_string_buffer(b"\xff" * size, size)
        out._obj.value = ctypes.addressof(memory)
        self.host[out._obj.value] = memory
        self.calls.append(("host_alloc", size, flags))

    def _cudaFreeHost(self, address: int) -> None:  # noqa: N802
        del self.host[address]

    def _cudaMalloc(self, out: Any, size: int) -> int:  # noqa: N802
        if sum(map(len, self.device.values())) + size > self.limit_bytes:
            return 2
        memory = ctypes.create_string_buffer(size)
        out._obj.value = ctypes.addressof(memory)
        self.device[out._obj.value] = memory
        return 0

    def _cudaFree(self, address: int) -> None:  # noqa: N802
        del self.device[address]

    def _cudaStreamCreateWithFlags(self, out: Any, flags: int) -> None:  # noqa: N802
        assert flags == 1, "a blocking stream would wait for all others"
        self.streams += 1
        out._obj.value = 0x5000 + self.streams

    def _cudaStreamDestroy(self, stream: int) -> None:  # noqa: N802
        self.streams -= 1

    def _cudaMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        assert stream > 0x5000
        self.calls.append(("to_device" if kind == 1 else "to_host", to, source, size))
        self.pending.append((to, source, size))

    def _cudaStreamSynchronize(self, stream: int) -> None:  # noqa: N802
        self.calls.append(("synchronize",))
        # Only now: who looks too early sees what was there before.
        for to, source, size in self.pending:
            ctypes.memmove(to, source, size)
        self.pending.clear()

    def _cudaGetLastError(self) -> None:  # noqa: N802
        self.cleared += 1

    def _cudaGetErrorString(self, code: int) -> bytes:  # noqa: N802
        return {2: b"out of memory", 801: b"operation not supported"}[code]


@dataclass
class PuppetBinding:
    """What was bound, by name: shape and address."""

    bound: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        assert (device_type, device_id, np.dtype(element_type)) == ("cuda", 0, np.dtype(np.float32))
        self.bound[name] = tuple(shape), buffer_ptr

    bind_output = bind_input


class PuppetSession:
    """y = 2 x of float32 rows, at the addresses that are bound. A captured graph repeats itself.

    Attributes:
        cudart: Told of each run, so that the order of copies and runs shows.
        graphs: By id what was bound when it was captured.
        most_rows: More of them do not fit into the memory.
        factor: What it multiplies by; other than 2 is wrong.
        failure: What it raises instead.
        times_ns: What a run takes: plain, bound, and as a graph; by `clock`.
    """

    def __init__(self, cudart: PuppetCudart, most_rows: int = 1 << 20, factor: float = 2) -> None:
        self.cudart = cudart
        self.most_rows = most_rows
        self.factor = factor
        self.failure: Exception | None = None
        self.clock = [0]
        self.times_ns = {"plain": 0, "bound": 0, "graph": 0}
        self.graphs: dict[int, PuppetBinding] = {}
        self.plain_runs: list[int] = []

    def io_binding(self) -> PuppetBinding:
        return PuppetBinding()

    def run(
        self, names: Sequence[str], feeds: dict[str, np.ndarray], options: Any = None
    ) -> list[np.ndarray]:
        self.plain_runs.append(_graph_id(options))
        self.clock[0] += self.times_ns["plain"]
        self._check_rows(len(feeds["x"]))
        return [feeds["x"] * np.float32(self.factor)]

    def run_with_iobinding(self, binding: PuppetBinding, options: Any = None) -> None:
        shape, address = binding.bound["x"]
        self._check_rows(shape[0])
        number = _graph_id(options)
        self.cudart.calls.append(("run", shape[0], number))
        self.clock[0] += self.times_ns["graph" if number > 0 else "bound"]
        if number > 0:
            binding = self.graphs.setdefault(number, binding)
        shape, address = binding.bound["x"]
        values = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), shape)
        shape, address = binding.bound["y"]
        np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), shape)[...] = (
            values * self.factor
        )

    def get_providers(self) -> list[str]:
        return ["CUDAExecutionProvider"]

    def _check_rows(self, rows: int) -> None:
        if self.failure is not None:
            raise self.failure
        if rows > self.most_rows:
            raise Fail(NO_MEMORY)


def _graph_id(options: Any) -> int:
    return 0 if options is None else int(options.get_run_config_entry("gpu_graph_id"))


class PuppetRows(SimpleNamespace):
    """A runtime that takes a fixed time by a hand clock."""

    signature = DOUBLES

    def __init__(self, clock: list[int], times_ns: dict[int, int], factor: float = 2) -> None:
        super().__init__(clock=clock, times_ns=times_ns, factor=factor)

    def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        self.clock[0] += self.times_ns[len(inputs[0])]
        return [inputs[0] * np.float32(self.factor)]
