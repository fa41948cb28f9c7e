"""Memory for the batches of one model instance: pinned pages of the host, their places on the GPU, and a stream.

Written for the CUDA runtime API (`cudaHostAlloc`, `cudaMalloc`, `cudaMemcpyAsync`, `cudaStreamSynchronize`) of the
`libcudart` that ONNX Runtime's provider has loaded into the process. `ctypes` releases the interpreter lock during
each call, so one instance copies while another computes.
"""

from __future__ import annotations

import ctypes
import logging
import math
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.runtimes.base import OutOfMemory
from stoker.tensors import TensorSpec

logger = logging.getLogger(__name__)

_MEMORY_ALLOCATION: Final = 2
_HOST_ALLOC_PORTABLE: Final = 1
_STREAM_NON_BLOCKING: Final = 1
_HOST_TO_DEVICE: Final = 1
_DEVICE_TO_HOST: Final = 2
_MAPS: Final = Path("/proc/self/maps")


class CudaError(Exception):
    """A call of the CUDA runtime failed; the message has its number and CUDA's words for it."""


class CudaRuntime:
    """The CUDA runtime of a loaded `libcudart`. Addresses and streams are integers; sizes are in bytes."""

    def __init__(self, library: Any) -> None:
        """Declare the functions of `library`, a `ctypes.CDLL`."""
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        out = ctypes.POINTER(ctypes.c_void_p)
        self._library = library
        signatures: dict[str, list[Any]] = {
            "cudaHostAlloc": [out, size, ctypes.c_uint],
            "cudaFreeHost": [pointer],
            "cudaMalloc": [out, size],
            "cudaFree": [pointer],
            "cudaStreamCreateWithFlags": [out, ctypes.c_uint],
            "cudaStreamDestroy": [pointer],
            "cudaMemcpyAsync": [pointer, pointer, size, ctypes.c_int, pointer],
            "cudaStreamSynchronize": [pointer],
            "cudaGetLastError": [],
        }
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        library.cudaGetErrorString.argtypes, library.cudaGetErrorString.restype = (
            [ctypes.c_int],
            ctypes.c_char_p,
        )

    def host_alloc(self, size_bytes: int) -> int:
        """Allocate pinned host memory; raises CudaError if the system grants none."""
        address = ctypes.c_void_p()
        code = self._library.cudaHostAlloc(ctypes.byref(address), size_bytes, _HOST_ALLOC_PORTABLE)
        if code:
            # That the host has no memory to pin must not look as if the GPU had none.
            raise self._error("cudaHostAlloc", code)
        return address.value or 0

    def host_free(self, address: int) -> None:
        """Free pinned memory."""
        self._check("cudaFreeHost", self._library.cudaFreeHost(address))

    def device_alloc(self, size_bytes: int) -> int:
        """Allocate GPU memory; raises OutOfMemory."""
        address = ctypes.c_void_p()
        self._check("cudaMalloc", self._library.cudaMalloc(ctypes.byref(address), size_bytes))
        return address.value or 0

    def device_free(self, address: int) -> None:
        """Free GPU memory."""
        self._check("cudaFree", self._library.cudaFree(address))

    def create_stream(self) -> int:
        """Make a stream that does not wait for the default stream."""
        stream = ctypes.c_void_p()
        code = self._library.cudaStreamCreateWithFlags(ctypes.byref(stream), _STREAM_NON_BLOCKING)
        self._check("cudaStreamCreateWithFlags", code)
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""
        self._check("cudaStreamDestroy", self._library.cudaStreamDestroy(stream))

    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        """Begin a copy; it is done when `synchronize` returns."""
        code = self._library.cudaMemcpyAsync(device, host, size_bytes, _HOST_TO_DEVICE, stream)
        self._check("cudaMemcpyAsync", code)

    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Begin a copy; it is done when `synchronize` returns."""
        code = self._library.cudaMemcpyAsync(host, device, size_bytes, _DEVICE_TO_HOST, stream)
        self._check("cudaMemcpyAsync", code)

    def synchronize(self, stream: int) -> None:
        """Wait for everything in a stream; raises CudaError if any of it failed."""
        self._check("cudaStreamSynchronize", self._library.cudaStreamSynchronize(stream))

    def _check(self, function: str, code: int) -> None:
        if not code:
            return
        error = self._error(function, code)
        if code == _MEMORY_ALLOCATION:
            raise OutOfMemory(str(error))
        raise error

    def _error(self, function: str, code: int) -> CudaError:
        # CUDA remembers the last error of the thread; ONNX Runtime would take it for one of its own kernels.
        self._library.cudaGetLastError()
        words = self._library.cudaGetErrorString(code) or b"unknown error"
        return CudaError(f"{function}: CUDA error {code}, {words.decode(errors='replace')}")


def load_cuda(major: str) -> CudaRuntime:
    """Find the CUDA runtime that a framework has loaded into this process.

    Args:
        major: The major version that is wanted where several are loaded; empty for any.

    Raises:
        CudaError: None is loaded.
    """
    mapped = {line.split()[-1] for line in _MAPS.read_text().splitlines() if "/libcudart.so." in line}
    if not mapped:
        raise CudaError("no libcudart is loaded in this process")
    paths = sorted(mapped, key=lambda path: (f"/libcudart.so.{major}" not in path, path))
    return CudaRuntime(ctypes.CDLL(paths[0]))


class _Staged:
    """One tensor of a batch: an array of the host and as much memory of the GPU."""

    def __init__(self, cuda: CudaRuntime, spec: TensorSpec, rows: int) -> None:
        self.name, self.dtype, self.shape = spec.name, np.dtype(spec.dtype), spec.shape
        self.row_bytes = self.dtype.itemsize * math.prod(spec.shape)
        size_bytes = max(1, rows * self.row_bytes)
        self.host = _host_array(cuda, (rows, *spec.shape), self.dtype, size_bytes)
        self.host_address: int = self.host.ctypes.data
        self.device_address = cuda.device_alloc(size_bytes)
        weakref.finalize(self, cuda.device_free, self.device_address).atexit = False


class StagedMemory:
    """The inputs and outputs of one batch at a time, of at most `rows` rows, at addresses that never change."""

    def __init__(
        self, cuda: CudaRuntime, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rows: int
    ) -> None:
        """Allocate the memory.

        Raises:
            OutOfMemory: The GPU has too little memory.
            CudaError: CUDA cannot be used.
        """
        self._cuda = cuda
        self._stream = cuda.create_stream()
        weakref.finalize(self, cuda.destroy_stream, self._stream).atexit = False
        self.rows = rows
        self.inputs = [_Staged(cuda, spec, rows) for spec in inputs]
        self.outputs = [_Staged(cuda, spec, rows) for spec in outputs]

    def host_inputs(self) -> list[np.ndarray]:
        """Per input the array `[rows, *row_shape]` that is copied to the GPU."""
        return [staged.host for staged in self.inputs]

    def send(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy a batch to the GPU and wait for it; what lies in the host arrays already is not copied twice."""
        for staged, array in zip(self.inputs, arrays, strict=True):
            rows = len(array)
            if array.__array_interface__["data"][0] != staged.host_address:
                np.copyto(staged.host[:rows], array, casting="no")
            self._cuda.copy_to_device(
                staged.device_address, staged.host_address, rows * staged.row_bytes, self._stream
            )
        self._cuda.synchronize(self._stream)

    def receive(self, rows: int) -> list[np.ndarray]:
        """Copy `rows` rows of all outputs from the GPU; the arrays are overwritten by the next batch."""
        for staged in self.outputs:
            self._cuda.copy_to_host(
                staged.host_address, staged.device_address, rows * staged.row_bytes, self._stream
            )
        self._cuda.synchronize(self._stream)
        return [staged.host[:rows] for staged in self.outputs]


def _host_array(cuda: CudaRuntime, shape: tuple[int, ...], dtype: np.dtype, size_bytes: int) -> np.ndarray:
    """Zeros in pinned memory, or in plain memory where none is granted."""
    try:
        address = cuda.host_alloc(size_bytes)
    except CudaError as error:
        logger.warning("%d bytes of host memory are not pinned, so copies are slower: %s", size_bytes, error)
        return np.zeros(shape, dtype)
    memory = (ctypes.c_ubyte * size_bytes).from_address(address)
    # Views keep `memory` alive, and with it the pages.
    weakref.finalize(memory, cuda.host_free, address).atexit = False
    array: np.ndarray = np.frombuffer(memoryview(memory), dtype, math.prod(shape)).reshape(shape)
    array[...] = 0
    return array
