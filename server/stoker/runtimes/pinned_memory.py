"""Memory for the batches of one model instance: pinned pages of the host, their places on the GPU, and a stream."""

from __future__ import annotations

import ctypes
import logging
import math
import weakref
from collections.abc import Sequence

import numpy as np

from stoker.runtimes.cuda import CudaError, CudaRuntime
from stoker.tensors import TensorSpec

logger = logging.getLogger(__name__)


class StagedTensor:
    """One tensor of a batch: an array of the host and as much memory of the GPU, at addresses that never change.

    Attributes:
        host: `[rows, *row_shape]`, in pinned memory if the system grants it.
        row_bytes: Size of a row.
    """

    def __init__(self, cuda: CudaRuntime, spec: TensorSpec, rows: int) -> None:
        """Allocate the memory; raise OutOfMemory if the GPU has too little."""
        self.name, self.dtype, self.shape = spec.name, spec.numpy_dtype, spec.shape
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
        self.inputs = [StagedTensor(cuda, spec, rows) for spec in inputs]
        self.outputs = [StagedTensor(cuda, spec, rows) for spec in outputs]
        # Inputs may be indices, so the first run must not see random memory.
        for staged in self.inputs:
            cuda.fill_with_zeros(staged.device_address, staged.host.nbytes, self._stream)
        cuda.synchronize(self._stream)

    def host_inputs(self) -> list[np.ndarray]:
        """Return per input the array `[rows, *row_shape]` that is copied to the GPU."""
        return [staged.host for staged in self.inputs]

    def send(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy a batch to the GPU and wait for it; rows that are in the host arrays already are not copied twice."""
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
    """Return zeros in pinned memory, or in plain memory if the system grants none."""
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
