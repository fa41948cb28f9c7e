"""Puppets of what CUDA has for sharing a GPU's memory between processes: GPUs, and the libraries of each process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_NAMES = {
    1: b"cudaErrorInvalidValue",
    2: b"cudaErrorMemoryAllocation",
    100: b"cudaErrorNoDevice",
    101: b"cudaErrorInvalidDevice",
    400: b"cudaErrorInvalidResourceHandle",
    700: b"cudaErrorIllegalAddress",
}
_GUARD_BYTES = 64


def handle_of(name: str) -> bytes:
    """The handle of an allocation of this name."""
    return name.encode().ljust(64, b"\0")


def pointee(reference: Any) -> Any:
    """The object that an argument made by `ctypes.byref` refers to."""
    return reference._obj


@dataclass
class PuppetGpus:
    """The memory of all GPUs: allocations that other processes have made, each between bytes of somebody else."""

    shared: dict[bytes, tuple[int, Any, int]] = field(default_factory=dict)

    def allocate(self, name: str, size_bytes: int, device: int = 0) -> bytes:
        """Make an allocation on a device, which counts from 0; returns its handle."""
        memory = ctypes.create_string_buffer(
            b"\xee" * (size_bytes + 2 * _GUARD_BYTES), size_bytes + 2 * _GUARD_BYTES
        )
        ctypes.memmove(
            ctypes.addressof(memory) + _GUARD_BYTES,
            bytes(index % 251 for index in range(size_bytes)),
            size_bytes,
        )
        handle = handle_of(name)
        self.shared[handle] = (device, memory, size_bytes)
        return handle

    def content(self, name: str) -> bytes:
        """The content of an allocation; checks that the bytes around it are untouched."""
        _, memory, size_bytes = self.shared[handle_of(name)]
        guard = b"\xee" * _GUARD_BYTES
        assert memory.raw[:_GUARD_BYTES] == memory.raw[-_GUARD_BYTES:] == guard
        return bytes(memory.raw[_GUARD_BYTES:-_GUARD_BYTES]) if size_bytes else b""

    def address(self, handle: bytes) -> tuple[int, int]:
        """Where an allocation is, and how long."""
        _, memory, size_bytes = self.shared[handle]
        return ctypes.addressof(memory) + _GUARD_BYTES, size_bytes


class PuppetLibrary:
    """A library whose functions are methods of the same names behind an underscore; they give 0 unless they say more.

    Attributes:
        failing: Names of functions that fail, with the error's number.
    """

    def __init__(self, *functions: str) -> None:
        self.failing: dict[str, int] = {}
        for name in functions:
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            if name in self.failing:
                return self.failing[name]
            result = getattr(self, f"_{name}")(*arguments)
            return 0 if result is None else result

        return function


class PuppetCuda(PuppetLibrary):
    """`libcudart` and `libcuda` of one process, as far as they are used.

    Args:
        gpus: Their memory.
        devices: How many GPUs there are.

    Attributes:
        contexts: The devices on which this process has a context.
        open: How often an address is open.
    """

    def __init__(self, gpus: PuppetGpus, devices: int = 1) -> None:
        self.gpus, self._devices = gpus, devices
        self.contexts: set[int] = set()
        self.open: dict[int, int] = {}
        self.device: int | None = None
        self._pending: list[tuple[int, bytes]] = []
        super().__init__(
            "cudaSetDevice",
            "cudaFree",
            "cudaIpcOpenMemHandle",
            "cudaIpcCloseMemHandle",
            "cudaMemcpy",
            "cudaStreamSynchronize",
            "cudaGetLastError",
            "cudaGetErrorName",
            "cuMemGetAddressRange_v2",
            "cuGetErrorName",
            "cuDriverGetVersion",
        )

    def _cudaSetDevice(self, device: int) -> int:  # noqa: N802
        if not self._devices:
            return 100
        if device >= self._devices:
            return 101
        self.device = device
        return 0

    def _cudaFree(self, address: None) -> None:  # noqa: N802
        assert address is None
        assert self.device is not None
        self.contexts.add(self.device)

    def _cudaIpcOpenMemHandle(self, out: Any, handle: Any, flags: int) -> int:  # noqa: N802
        assert flags == 1
        found = bytes(handle)
        if found not in self.gpus.shared or self.gpus.shared[found][0] != self.device:
            return 400
        pointee(out).value, _ = self.gpus.address(found)
        self.open[pointee(out).value] = self.open.get(pointee(out).value, 0) + 1
        return 0

    def _cudaIpcCloseMemHandle(self, address: int) -> None:  # noqa: N802
        self.open[address] -= 1
        if not self.open[address]:
            del self.open[address]

    def _cudaMemcpy(self, to: int, source: int, size: int, kind: int) -> int:  # noqa: N802
        at = to if kind == 1 else source
        mine = [
            handle
            for handle, (device, _, size_bytes) in self.gpus.shared.items()
            if device == self.device and 0 <= at - self.gpus.address(handle)[0] <= size_bytes - size
        ]
        assert mine, "memory that nobody shares"
        assert self.gpus.address(mine[0])[0] in self.open, "memory that is not open"
        if kind == 1:
            # CUDA reads ordinary memory at once, and the copy arrives later.
            self._pending.append((to, ctypes.string_at(source, size)))
        else:
            ctypes.memmove(to, source, size)
        return 0

    def _cudaStreamSynchronize(self, stream: None) -> None:  # noqa: N802
        assert stream is None, "copies are on the default stream"
        for to, content in self._pending:
            ctypes.memmove(to, content, len(content))
        self._pending.clear()

    def _cudaGetLastError(self) -> None:  # noqa: N802
        pass

    def _cudaGetErrorName(self, code: int) -> bytes:  # noqa: N802
        return _NAMES[code]

    def _cuMemGetAddressRange_v2(self, base: Any, size: Any, address: int) -> int:  # noqa: N802
        for handle in self.gpus.shared:
            begin, size_bytes = self.gpus.address(handle)
            if begin <= address < begin + size_bytes:
                pointee(base).value, pointee(size).value = begin, size_bytes
                return 0
        return 201

    def _cuGetErrorName(self, code: int, out: Any) -> None:  # noqa: N802
        pointee(out).value = {201: b"CUDA_ERROR_INVALID_CONTEXT"}[code]

    def _cuDriverGetVersion(self, out: Any) -> None:  # noqa: N802
        pointee(out).value = 12040
