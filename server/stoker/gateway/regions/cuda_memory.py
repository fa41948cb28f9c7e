"""A caller's memory on a GPU, as this process has it open.

Its length never changes, and nothing tells when its owner has ended: CUDA asks owners not to free memory that
others have open. CUDA's errors are passed on to the caller, for they are about the caller's own memory.
"""

from __future__ import annotations

import base64
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Collection

import numpy as np

from stoker.errors import InvalidInput, NotSupported, Overloaded, StokerError
from stoker.gateway.regions.table import CudaPlace
from stoker.gpu.cuda_ipc import CudaFailure, CudaSharing, CudaUnusable, load_cuda_ipc

__all__ = ["CudaDevices", "CudaMemory"]

logger = logging.getLogger(__name__)

_NO_MEMORY = "cudaErrorMemoryAllocation"


class CudaMemory:
    """One region; it is open as long as this object exists.

    Args:
        cuda: The CUDA libraries.
        place: The handle and the device of the region.
        size_bytes: The length of the region.

    Attributes:
        linked: Always True: nothing tells when its owner has ended.
        place: As given.
        size_bytes: As given.

    Raises:
        InvalidInput: The allocation is shorter than the region.
        CudaFailure: It cannot be opened.
        CudaUnusable: Memory of GPUs cannot be shared here.
    """

    linked = True

    def __init__(self, cuda: CudaSharing, place: CudaPlace, size_bytes: int) -> None:
        self.place, self.size_bytes = place, size_bytes
        self._cuda = cuda
        self._address = cuda.open(place.device_id, base64.b64decode(place.handle))
        weakref.finalize(self, _close, cuda, place.device_id, self._address).atexit = False
        has_bytes = cuda.size_behind(place.device_id, self._address)
        if size_bytes > has_bytes:
            raise InvalidInput(
                f"failed to register CUDA shared memory region: it would end at byte {size_bytes}, and the "
                f"allocation has {has_bytes}"
            )

    def read(self, begin: int, size_bytes: int) -> memoryview | None:
        """Return a copy of a part; None if the region ends before the part does.

        Raises:
            InvalidInput: CUDA cannot copy it.
        """
        if not self._has(begin, size_bytes):
            return None
        content = np.empty(size_bytes, np.uint8)
        if size_bytes:
            to, source = content.ctypes.data, self._address + begin
            try:
                self._cuda.copy_to_host(self.place.device_id, to, source, size_bytes)
            except (CudaFailure, CudaUnusable) as error:
                raise InvalidInput(f"Unable to read CUDA shared memory: {error}") from None
        return content.data

    def write(self, begin: int, content: memoryview) -> bool:
        """Write a part; False if the region ends before the part does.

        Raises:
            InvalidInput: CUDA cannot copy it.
        """
        if not self._has(begin, len(content)):
            return False
        if len(content):
            source = np.frombuffer(content, np.uint8)
            to = self._address + begin
            try:
                self._cuda.copy_to_device(self.place.device_id, to, source.ctypes.data, len(content))
            except (CudaFailure, CudaUnusable) as error:
                raise InvalidInput(f"Unable to write CUDA shared memory: {error}") from None
        return True

    def _has(self, begin: int, size_bytes: int) -> bool:
        return begin >= 0 and size_bytes >= 0 and begin + size_bytes <= self.size_bytes


class CudaDevices:
    """CUDA in a frontend, which is not loaded before a region on a GPU is registered.

    Args:
        load: Loads CUDA's libraries; raises `CudaUnusable`.
    """

    def __init__(self, load: Callable[[], CudaSharing] = lambda: load_cuda_ipc(sys.path)) -> None:
        self._load, self._loading = load, threading.Lock()
        self._cuda: CudaSharing | None = None
        self._prepared: set[int] = set()

    def open(self, place: CudaPlace, size_bytes: int) -> CudaMemory:
        """Open a region; to be called on a thread too, for the first one in a process takes long.

        Raises:
            NotSupported: There is no GPU, driver or library, or they cannot share memory.
            InvalidInput: The handle is invalid, or the allocation is shorter than the region.
            Overloaded: There is no memory for it.
        """
        try:
            memory = CudaMemory(self._loaded(), place, size_bytes)
        except CudaUnusable as error:
            raise NotSupported(
                f"CUDA's shared memory cannot be used here: {error}; put the tensors into system shared memory, "
                "or into the request"
            ) from None
        except CudaFailure as error:
            raise _unopened(error) from None
        self._prepared.add(place.device_id)
        return memory

    def cold(self, devices: Collection[int]) -> set[int]:
        """Those of these devices on which nothing has been opened yet; each is returned once."""
        cold = set(devices) - self._prepared
        self._prepared |= cold
        return cold

    def prepare(self, devices: Collection[int]) -> None:
        """Create this process's contexts on devices, on a thread: it takes some tenths of a second."""
        for device in sorted(devices):
            try:
                self._loaded().prepare(device)
            except (CudaFailure, CudaUnusable) as error:
                logger.warning(
                    "memory of GPU %d that is registered cannot be used in this process: %s", device, error
                )

    def _loaded(self) -> CudaSharing:
        with self._loading:
            if self._cuda is None:
                self._cuda = self._load()
            return self._cuda


def _close(cuda: CudaSharing, device: int, address: int) -> None:
    try:
        cuda.close(device, address)
    except (CudaFailure, CudaUnusable) as error:
        logger.warning("shared memory of a GPU cannot be closed: %s", error)


def _unopened(error: CudaFailure) -> StokerError:
    if error.name == _NO_MEMORY:
        return Overloaded(f"There is no memory to open a CUDA shared memory region: {error}")
    return InvalidInput(f"Unable to open CUDA shared memory region: {error}")
