"""Memory of a GPU that another process shares: opened by its handle, copied from and to, closed.

It uses the CUDA runtime API (`cudaIpcOpenMemHandle`, `cudaIpcCloseMemHandle`, `cudaMemcpy`; "API synchronization
behavior"), and `cuMemGetAddressRange` of the driver, which alone returns the length of an allocation. The first call
for a device makes CUDA's context of this process on it. `ctypes` releases the interpreter lock during each call.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from stoker.gpu.facts import library_folders

HANDLE_BYTES: Final = 64
"""The length of a `cudaIpcMemHandle_t`."""
_LAZY_ENABLE_PEER_ACCESS: Final = 1
_HOST_TO_DEVICE: Final = 1
_DEVICE_TO_HOST: Final = 2
_DRIVER: Final = "libcuda.so.1"
_RUNTIME: Final = "libcudart.so."
_OLDEST: Final = 11
_NUMBERED: Final = re.compile(r"libcudart\.so\.(\d+)")
_UNUSABLE: Final = frozenset(
    f"cudaError{name}"
    for name in (
        *("InsufficientDriver", "NoDevice", "InitializationError", "StubLibrary", "NotSupported"),
        *("SystemNotReady", "SystemDriverMismatch", "CompatNotSupportedOnDevice", "DevicesUnavailable"),
        *("OperatingSystem", "CallRequiresNewerDriver"),
    )
)
"""CUDA's errors if no process can share memory with this one."""


class CudaUnusable(Exception):
    """A library, the driver or a GPU is missing, or cannot share memory; the message says which."""


class CudaFailure(Exception):
    """A call failed; the message has CUDA's name of the error.

    Attributes:
        name: CUDA's name of the error, for instance `cudaErrorInvalidValue`.
    """

    def __init__(self, function: str, name: str) -> None:
        super().__init__(f"{function}: {name}")
        self.name = name


class CudaSharing(Protocol):
    """The used functions of CUDA, with addresses as integers. All raise `CudaFailure` and `CudaUnusable`."""

    def prepare(self, device: int) -> None:
        """Make the context of this process on a device, for later calls."""
        ...

    def open(self, device: int, handle: bytes) -> int:
        """Return the address in this process of another process's allocation."""
        ...

    def close(self, device: int, address: int) -> None:
        """Close an allocation of another process."""
        ...

    def size_behind(self, device: int, address: int) -> int:
        """Return the bytes of an allocation from an address to its end."""
        ...

    def copy_to_host(self, device: int, host: int, address: int, size_bytes: int) -> None:
        """Copy from the device; done when it returns."""
        ...

    def copy_to_device(self, device: int, address: int, host: int, size_bytes: int) -> None:
        """Copy to the device; done when it returns."""
        ...


class _Handle(ctypes.Structure):
    """`cudaIpcMemHandle_t`, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaIpc:
    """`CudaSharing` by the libraries.

    Args:
        runtime: `libcudart`, a `ctypes.CDLL`.
        driver: `libcuda`, likewise.
    """

    def __init__(self, runtime: Any, driver: Any) -> None:
        self._runtime, self._driver = runtime, driver
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        out = ctypes.POINTER(ctypes.c_void_p)
        signatures: dict[str, list[Any]] = {
            "cudaSetDevice": [number],
            "cudaFree": [pointer],
            "cudaIpcOpenMemHandle": [out, _Handle, ctypes.c_uint],
            "cudaIpcCloseMemHandle": [pointer],
            "cudaMemcpy": [pointer, pointer, size, number],
            "cudaStreamSynchronize": [pointer],
            "cudaGetLastError": [],
        }
        for name, arguments in signatures.items():
            function = getattr(runtime, name)
            function.argtypes, function.restype = arguments, number
        runtime.cudaGetErrorName.argtypes, runtime.cudaGetErrorName.restype = [number], ctypes.c_char_p
        get_range = driver.cuMemGetAddressRange_v2
        # A CUdeviceptr is as wide as a pointer.
        get_range.argtypes, get_range.restype = [out, ctypes.POINTER(size), pointer], number
        get_name = driver.cuGetErrorName
        get_name.argtypes, get_name.restype = [number, ctypes.POINTER(ctypes.c_char_p)], number

    def prepare(self, device: int) -> None:
        """See `CudaSharing`."""
        self._use(device)
        # Before CUDA 12 cudaSetDevice did not make the context; the first call after it did.
        self._check("cudaFree", self._runtime.cudaFree(None))

    def open(self, device: int, handle: bytes) -> int:
        """See `CudaSharing`."""
        self.prepare(device)
        address = ctypes.c_void_p()
        shared = _Handle.from_buffer_copy(handle)
        code = self._runtime.cudaIpcOpenMemHandle(ctypes.byref(address), shared, _LAZY_ENABLE_PEER_ACCESS)
        self._check("cudaIpcOpenMemHandle", code)
        return address.value or 0

    def close(self, device: int, address: int) -> None:
        """See `CudaSharing`."""
        self._use(device)
        self._check("cudaIpcCloseMemHandle", self._runtime.cudaIpcCloseMemHandle(address))

    def size_behind(self, device: int, address: int) -> int:
        """See `CudaSharing`."""
        self._use(device)
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        code = self._driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), address)
        if code:
            name = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(name))
            raise CudaFailure("cuMemGetAddressRange", (name.value or b"unknown error").decode())
        return (base.value or 0) + size.value - address

    def copy_to_host(self, device: int, host: int, address: int, size_bytes: int) -> None:
        """See `CudaSharing`."""
        self._copy(device, host, address, size_bytes, _DEVICE_TO_HOST)

    def copy_to_device(self, device: int, address: int, host: int, size_bytes: int) -> None:
        """See `CudaSharing`."""
        self._copy(device, address, host, size_bytes, _HOST_TO_DEVICE)
        # A copy from ordinary memory returns when that may be reused, which is before the data have arrived.
        self._check("cudaStreamSynchronize", self._runtime.cudaStreamSynchronize(None))

    def _copy(self, device: int, to: int, source: int, size_bytes: int, kind: int) -> None:
        self._use(device)
        self._check("cudaMemcpy", self._runtime.cudaMemcpy(to, source, size_bytes, kind))

    def _use(self, device: int) -> None:
        # The device is set for each thread, and this one may have used another.
        self._check("cudaSetDevice", self._runtime.cudaSetDevice(device))

    def _check(self, function: str, code: int) -> None:
        if not code:
            return
        # CUDA keeps the error, and would return it from a later call.
        self._runtime.cudaGetLastError()
        name = (self._runtime.cudaGetErrorName(code) or b"").decode(errors="replace") or f"CUDA error {code}"
        failure = CudaFailure(function, name)
        if name in _UNUSABLE:
            raise CudaUnusable(str(failure))
        raise failure


def load_cuda_ipc(folders: Sequence[str], load: Callable[[str], Any] = ctypes.CDLL) -> CudaIpc:
    """Load the driver's library, and the newest runtime that the driver supports.

    Args:
        folders: Folders of packages that may have a runtime; the dynamic linker finds others.
        load: Loads a library by its path or name.

    Raises:
        CudaUnusable: A library is missing.
    """
    try:
        driver = load(_DRIVER)
    except OSError as error:
        raise CudaUnusable(f"there is no NVIDIA driver: {error}") from None
    newest = _newest_cuda(driver)
    for name in _runtimes(folders, newest):
        with suppress(OSError):
            return CudaIpc(load(name), driver)
    raise CudaUnusable(
        f"no {_RUNTIME}{newest} or older is found, which is the CUDA runtime "
        "(pip install 'onnxruntime-gpu[cuda,cudnn]' brings it)"
    )


def _newest_cuda(driver: Any) -> int:
    version = ctypes.c_int()
    driver.cuDriverGetVersion.argtypes = [ctypes.POINTER(ctypes.c_int)]
    driver.cuDriverGetVersion.restype = ctypes.c_int
    if driver.cuDriverGetVersion(ctypes.byref(version)):
        raise CudaUnusable("the NVIDIA driver does not say its version")
    return version.value // 1000


def _runtimes(folders: Sequence[str], newest: int) -> Iterator[str]:
    """Yield paths and names of runtimes that a driver may run, the newest first and packages before the system."""
    places = library_folders(folders)
    for major in range(newest, _OLDEST - 1, -1):
        for place in places:
            found = sorted(place.glob(f"{_RUNTIME}{major}*"))
            yield from (
                str(path)
                for path in found
                if (match := _NUMBERED.match(path.name)) and int(match[1]) == major
            )
        yield f"{_RUNTIME}{major}"
        # The name of CUDA 11's runtime has a minor version.
        yield f"{_RUNTIME}{major}.0"
