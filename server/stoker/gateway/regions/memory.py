"""A caller's shared memory that this process has open: read and written by system calls, never mapped.

The caller may truncate the memory at any moment: a process that touches a mapped page behind the new end dies of
SIGBUS, whatever it has checked before. `preadv` returns less instead. It copies once, so the caller cannot change
what was checked; and reading a hole in the file takes no memory.

Memory on a GPU never changes its length, and nothing reports that its owner has ended: CUDA asks owners not to free
memory that others have open. CUDA's errors are passed on to the caller, for they are about the caller's own memory.
"""

from __future__ import annotations

import base64
import errno
import logging
import os
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import numpy as np

from stoker.errors import InvalidInput, NotSupported, Overloaded, StokerError, quoted
from stoker.gateway.regions.table import CudaLocation
from stoker.gpu.cuda_ipc import CudaFailure, CudaSharing, CudaUnusable, load_cuda_ipc

_FOLDER: Final = Path("/dev/shm")  # noqa: S108  # where Linux keeps what shm_open opens
_SEMAPHORES: Final = "sem."
_MAX_KEY_BYTES: Final = 255


def file_of(key: str) -> Path:
    """Return the file of a shared memory object, named as for `shm_open`; no key names other files of the machine."""
    name = key.removeprefix("/")
    fits = 0 < len(os.fsencode(name)) <= _MAX_KEY_BYTES and "/" not in name and "\0" not in name
    if not fits or name in (".", "..") or name.startswith(_SEMAPHORES):
        raise InvalidInput(f"Unable to open shared memory region: {quoted(key)} is no name of shared memory")
    return _FOLDER / name


class OpenMemory:
    """One file, identified by `device` and `inode`; it is open as long as this object exists."""

    __slots__ = ("_fd", "device", "inode")

    def __init__(self, key: str) -> None:
        """Open it."""
        self._fd = -1
        path = file_of(key)
        try:
            # Without blocking on a FIFO, and without following symbolic links.
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise _cannot_open(key, "there is no such shared memory") from None
        except PermissionError:
            raise _cannot_open(key, "the server's user may not read and write it") from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise Overloaded("No descriptor is left for a shared memory region.") from None
            raise _cannot_open(key, os.strerror(error.errno or 0)) from None
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise _cannot_open(key, "it is no plain file")
        self.device, self.inode = status.st_dev, status.st_ino

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def size_bytes(self) -> int:
        """Its present length; 0 once its owner has removed it."""
        status = os.fstat(self._fd)
        return status.st_size if status.st_nlink else 0

    @property
    def linked(self) -> bool:
        """Whether it still has a name; if not, its owner has removed it."""
        return os.fstat(self._fd).st_nlink > 0

    def read(self, begin: int, size_bytes: int) -> memoryview | None:
        """Return a copy of a part; None if the file ends before the part does."""
        content = np.empty(size_bytes, np.uint8).data
        at = 0
        while at < size_bytes:
            got = os.preadv(self._fd, [content[at:]], begin + at)
            if not got:
                return None
            at += got
        return content

    def write(self, begin: int, content: memoryview) -> bool:
        """Write a part; False if the file ends before the part does, in which case it is not extended."""
        if self.size_bytes < begin + len(content):
            return False
        at = 0
        while at < len(content):
            at += os.pwritev(self._fd, [content[at:]], begin + at)
        return True


def _cannot_open(key: str, why: str) -> StokerError:
    return InvalidInput(f"Unable to open shared memory region: {quoted(key)}: {why}")


logger = logging.getLogger(__name__)

_NO_MEMORY = "cudaErrorMemoryAllocation"


class CudaMemory:
    """One region; it is open as long as this object exists.

    Attributes:
        linked: Always True: nothing reports that the owner has ended.

    Raises:
        CudaFailure: The region cannot be opened.
        CudaUnusable: This machine cannot share memory of GPUs.
    """

    linked = True

    def __init__(self, cuda: CudaSharing, location: CudaLocation, size_bytes: int) -> None:
        self.location, self.size_bytes = location, size_bytes
        self._cuda = cuda
        self._address = cuda.open(location.device_id, base64.b64decode(location.handle))
        weakref.finalize(self, _close, cuda, location.device_id, self._address).atexit = False
        has_bytes = cuda.size_behind(location.device_id, self._address)
        if size_bytes > has_bytes:
            raise InvalidInput(
                f"failed to register CUDA shared memory region: it would end at byte {size_bytes}, and the "
                f"allocation has {has_bytes}"
            )

    def read(self, begin: int, size_bytes: int) -> memoryview | None:
        """Return a copy of a part; None if the region ends before the part does."""
        if not self._has(begin, size_bytes):
            return None
        content = np.empty(size_bytes, np.uint8)
        if size_bytes:
            to, source = content.ctypes.data, self._address + begin
            try:
                self._cuda.copy_to_host(self.location.device_id, to, source, size_bytes)
            except (CudaFailure, CudaUnusable) as error:
                raise InvalidInput(f"Unable to read CUDA shared memory: {error}") from None
        return content.data

    def write(self, begin: int, content: memoryview) -> bool:
        """Write a part; False if the region ends before the part does."""
        if not self._has(begin, len(content)):
            return False
        if len(content):
            source = np.frombuffer(content, np.uint8)
            to = self._address + begin
            try:
                self._cuda.copy_to_device(self.location.device_id, to, source.ctypes.data, len(content))
            except (CudaFailure, CudaUnusable) as error:
                raise InvalidInput(f"Unable to write CUDA shared memory: {error}") from None
        return True

    def _has(self, begin: int, size_bytes: int) -> bool:
        return begin >= 0 and size_bytes >= 0 and begin + size_bytes <= self.size_bytes


class CudaDevices:
    """CUDA in a frontend; `load`, which may raise CudaUnusable, is called for the first region on a GPU."""

    def __init__(self, load: Callable[[], CudaSharing] = lambda: load_cuda_ipc(sys.path)) -> None:
        self._load, self._loading = load, threading.Lock()
        self._cuda: CudaSharing | None = None
        self._prepared: set[int] = set()

    def open(self, location: CudaLocation, size_bytes: int) -> CudaMemory:
        """Open a region; may be called in a thread, because the first one in a process takes long."""
        try:
            memory = CudaMemory(self._load_once(), location, size_bytes)
        except CudaUnusable as error:
            raise NotSupported(
                f"CUDA's shared memory cannot be used here: {error}; put the tensors into system shared memory, "
                "or into the request"
            ) from None
        except CudaFailure as error:
            raise _cannot_open_cuda(error) from None
        self._prepared.add(location.device_id)
        return memory

    def cold(self, devices: Collection[int]) -> set[int]:
        """Return the devices on which nothing has been opened yet; each is returned once."""
        cold = set(devices) - self._prepared
        self._prepared |= cold
        return cold

    def prepare(self, devices: Collection[int]) -> None:
        """Create this process's contexts on devices; called in a thread, for it takes tenths of a second."""
        for device in sorted(devices):
            try:
                self._load_once().prepare(device)
            except (CudaFailure, CudaUnusable) as error:
                logger.warning(
                    "memory of GPU %d that is registered cannot be used in this process: %s", device, error
                )

    def _load_once(self) -> CudaSharing:
        with self._loading:
            if self._cuda is None:
                self._cuda = self._load()
            return self._cuda


def _close(cuda: CudaSharing, device: int, address: int) -> None:
    try:
        cuda.close(device, address)
    except (CudaFailure, CudaUnusable) as error:
        logger.warning("shared memory of a GPU cannot be closed: %s", error)


def _cannot_open_cuda(error: CudaFailure) -> StokerError:
    if error.name == _NO_MEMORY:
        return Overloaded(f"There is no memory to open a CUDA shared memory region: {error}")
    return InvalidInput(f"Unable to open CUDA shared memory region: {error}")
