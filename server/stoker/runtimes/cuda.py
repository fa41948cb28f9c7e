"""The functions of the CUDA runtime API that runtimes call themselves, beside those of a framework.

They are in the `libcudart` that the framework has loaded into the process. `ctypes` releases the interpreter lock
during each call, so one thread copies while another computes.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.runtimes.base import OutOfMemory

_MEMORY_ALLOCATION: Final = 2
_NOT_READY: Final = 600
_PORTABLE: Final = 1
_STREAM_NON_BLOCKING: Final = 1
_BLOCKING_SYNC: Final = 1
_DISABLE_TIMING: Final = 2
_HOST_TO_DEVICE: Final = 1
_DEVICE_TO_HOST: Final = 2
_CAPTURE_THREAD_LOCAL: Final = 1
_BATCHES_SINCE: Final = 13000
"""The version since which `cudaMemcpyBatchAsync` has its present arguments."""
_MAPS: Final = Path("/proc/self/maps")


class _CopyAttributes(ctypes.Structure):
    """`cudaMemcpyAttributes`: sources are read in the order of the stream, without hints of places."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


_IN_STREAM_ORDER: Final = 1


class CudaError(Exception):
    """A call of the CUDA runtime failed; the message has the number and text of the error."""


class CudaRuntime:
    """The CUDA runtime of a loaded `libcudart`. Addresses, streams and events are integers; sizes are in bytes.

    Attributes:
        copies_in_batches: Whether `copy_batch_to_device` can be called.
    """

    def __init__(self, library: Any) -> None:
        """Declare the functions of `library`, a `ctypes.CDLL`."""
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        out = ctypes.POINTER(ctypes.c_void_p)
        self._library = library
        self._thread = threading.local()
        signatures: dict[str, list[Any]] = {
            "cudaHostAlloc": [out, size, ctypes.c_uint],
            "cudaFreeHost": [pointer],
            "cudaMalloc": [out, size],
            "cudaFree": [pointer],
            "cudaStreamCreateWithFlags": [out, ctypes.c_uint],
            "cudaStreamDestroy": [pointer],
            "cudaMemcpyAsync": [pointer, pointer, size, ctypes.c_int, pointer],
            "cudaStreamSynchronize": [pointer],
            "cudaStreamWaitEvent": [pointer, pointer, ctypes.c_uint],
            "cudaMemsetAsync": [pointer, ctypes.c_int, size, pointer],
            "cudaMemGetInfo": [ctypes.POINTER(size), ctypes.POINTER(size)],
            "cudaHostRegister": [pointer, size, ctypes.c_uint],
            "cudaHostUnregister": [pointer],
            "cudaEventCreateWithFlags": [out, ctypes.c_uint],
            "cudaEventDestroy": [pointer],
            "cudaEventRecord": [pointer, pointer],
            "cudaEventQuery": [pointer],
            "cudaEventSynchronize": [pointer],
            "cudaEventElapsedTime": [ctypes.POINTER(ctypes.c_float), pointer, pointer],
            "cudaThreadExchangeStreamCaptureMode": [ctypes.POINTER(ctypes.c_int)],
            "cudaRuntimeGetVersion": [ctypes.POINTER(ctypes.c_int)],
            "cudaGetLastError": [],
        }
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        library.cudaGetErrorString.argtypes, library.cudaGetErrorString.restype = (
            [ctypes.c_int],
            ctypes.c_char_p,
        )
        version = ctypes.c_int()
        self._check("cudaRuntimeGetVersion", library.cudaRuntimeGetVersion(ctypes.byref(version)))
        self.copies_in_batches = version.value >= _BATCHES_SINCE
        if self.copies_in_batches:
            attributes = ctypes.POINTER(_CopyAttributes)
            first = ctypes.POINTER(size)
            batch = library.cudaMemcpyBatchAsync
            batch.argtypes = [pointer, pointer, pointer, size, attributes, first, size, pointer]
            batch.restype = ctypes.c_int

    def host_alloc(self, size_bytes: int) -> int:
        """Allocate pinned host memory; raise CudaError if the system grants none."""
        address = ctypes.c_void_p()
        code = self._library.cudaHostAlloc(ctypes.byref(address), size_bytes, _PORTABLE)
        if code:
            # OutOfMemory would mean that the GPU has no memory.
            raise self._error("cudaHostAlloc", code)
        return address.value or 0

    def host_free(self, address: int) -> None:
        """Free pinned memory."""
        self._check("cudaFreeHost", self._library.cudaFreeHost(address))

    def device_alloc(self, size_bytes: int) -> int:
        """Allocate GPU memory; raise OutOfMemory if there is none."""
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

    def copy_batch_to_device(
        self, device: np.ndarray, host: np.ndarray, sizes_bytes: np.ndarray, stream: int
    ) -> None:
        """Begin several copies in one call; all arguments are `uint64[copies]`."""
        attributes, first = _CopyAttributes(source_access_order=_IN_STREAM_ORDER), ctypes.c_size_t(0)
        code = self._library.cudaMemcpyBatchAsync(
            device.ctypes.data,
            host.ctypes.data,
            sizes_bytes.ctypes.data,
            len(sizes_bytes),
            ctypes.byref(attributes),
            ctypes.byref(first),
            1,
            stream,
        )
        self._check("cudaMemcpyBatchAsync", code)

    def fill_with_zeros(self, device: int, size_bytes: int, stream: int) -> None:
        """Begin to set GPU memory to zeros."""
        self._check("cudaMemsetAsync", self._library.cudaMemsetAsync(device, 0, size_bytes, stream))

    def synchronize(self, stream: int) -> None:
        """Wait for all work of a stream; raise CudaError if it failed."""
        self._check("cudaStreamSynchronize", self._library.cudaStreamSynchronize(stream))

    def register_host(self, address: int, size_bytes: int) -> None:
        """Pin existing pages, so that the GPU can read them; raise CudaError if the system refuses."""
        code = self._library.cudaHostRegister(address, size_bytes, _PORTABLE)
        if code:
            raise self._error("cudaHostRegister", code)

    def unregister_host(self, address: int) -> None:
        """Release the pages of `register_host`."""
        self._check("cudaHostUnregister", self._library.cudaHostUnregister(address))

    def create_event(self, *, timed: bool = False) -> int:
        """Make an event. Timed events are for `elapsed_ns`, others are cheaper."""
        event = ctypes.c_void_p()
        # With this flag a waiting thread sleeps; otherwise it would keep a core busy during the batch.
        flags = _BLOCKING_SYNC | (0 if timed else _DISABLE_TIMING)
        code = self._library.cudaEventCreateWithFlags(ctypes.byref(event), flags)
        self._check("cudaEventCreateWithFlags", code)
        return event.value or 0

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._check("cudaEventDestroy", self._library.cudaEventDestroy(event))

    def record(self, event: int, stream: int) -> None:
        """Put an event at the current end of a stream."""
        self._check("cudaEventRecord", self._library.cudaEventRecord(event, stream))

    def wait_in_stream(self, stream: int, event: int) -> None:
        """Make later work of a stream wait for an event of another stream."""
        self._check("cudaStreamWaitEvent", self._library.cudaStreamWaitEvent(stream, event, 0))

    def ignore_captures(self) -> None:
        """Allow calls of this thread while another thread captures a graph.

        CUDA would refuse many of them, and the capture would fail too.
        """
        if not getattr(self._thread, "ignores_captures", False):
            mode = ctypes.c_int(_CAPTURE_THREAD_LOCAL)
            code = self._library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            self._check("cudaThreadExchangeStreamCaptureMode", code)
            self._thread.ignores_captures = True

    def has_passed(self, event: int) -> bool:
        """Return whether the device has reached an event; raise CudaError if work before it failed."""
        self.ignore_captures()
        code = self._library.cudaEventQuery(event)
        if code == _NOT_READY:
            # "Not ready" counts as the last error, which ONNX Runtime would take for its own.
            self._library.cudaGetLastError()
            return False
        self._check("cudaEventQuery", code)
        return True

    def wait_for(self, event: int) -> None:
        """Wait until the device has reached an event; raise CudaError if work before it failed."""
        self.ignore_captures()
        self._check("cudaEventSynchronize", self._library.cudaEventSynchronize(event))

    def elapsed_ns(self, start: int, end: int) -> int:
        """Return the time between two timed events that have passed."""
        elapsed_ms = ctypes.c_float()
        code = self._library.cudaEventElapsedTime(ctypes.byref(elapsed_ms), start, end)
        self._check("cudaEventElapsedTime", code)
        return round(elapsed_ms.value * 1e6)

    def free_bytes(self) -> int:
        """Return the free memory of the GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._check("cudaMemGetInfo", self._library.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
        return free.value

    def _check(self, function: str, code: int) -> None:
        if not code:
            return
        error = self._error(function, code)
        if code == _MEMORY_ALLOCATION:
            raise OutOfMemory(str(error))
        raise error

    def _error(self, function: str, code: int) -> CudaError:
        # CUDA keeps the last error of the thread, which ONNX Runtime would take for one of its kernels.
        self._library.cudaGetLastError()
        words = self._library.cudaGetErrorString(code) or b"unknown error"
        return CudaError(f"{function}: CUDA error {code}, {words.decode(errors='replace')}")


def load_cuda(major: str) -> CudaRuntime:
    """Find the CUDA runtime that a framework has loaded into this process.

    Args:
        major: The preferred major version if several are loaded; empty for any.

    Raises:
        CudaError: No CUDA runtime is loaded.
    """
    mapped = {line.split()[-1] for line in _MAPS.read_text().splitlines() if "/libcudart.so." in line}
    if not mapped:
        raise CudaError("no libcudart is loaded in this process")
    paths = sorted(mapped, key=lambda path: (f"/libcudart.so.{major}" not in path, path))
    return CudaRuntime(ctypes.CDLL(paths[0]))
