"""A caller's shared memory as this process has it open: read and written by system calls, never mapped.

The caller may truncate it at any moment: a process that touches a mapped page behind the new end dies of SIGBUS,
whatever it has checked before. `preadv` returns less instead. It copies once, after which the caller can change
nothing of what was checked; and reading a hole in the file takes no memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

import numpy as np

from stoker.echo import quoted
from stoker.errors import InvalidInput, Overloaded, StokerError

__all__ = ["OpenMemory", "file_of"]

_FOLDER: Final = Path("/dev/shm")  # noqa: S108  # where Linux keeps what shm_open opens
_SEMAPHORES: Final = "sem."
_MAX_KEY_BYTES: Final = 255


def file_of(key: str) -> Path:
    """Return the file of a shared memory object.

    Args:
        key: Its name, as `shm_open` takes it.

    Raises:
        InvalidInput: The key is invalid; it can name no other files of the machine.
    """
    name = key.removeprefix("/")
    fits = 0 < len(os.fsencode(name)) <= _MAX_KEY_BYTES and "/" not in name and "\0" not in name
    if not fits or name in (".", "..") or name.startswith(_SEMAPHORES):
        raise InvalidInput(f"Unable to open shared memory region: {quoted(key)} is no name of shared memory")
    return _FOLDER / name


class OpenMemory:
    """One file; it is open as long as this object exists.

    Attributes:
        device, inode: The identity of the file.
    """

    __slots__ = ("_fd", "device", "inode")

    def __init__(self, key: str) -> None:
        """Open it.

        Raises:
            InvalidInput: It cannot be opened, or is not a regular file.
            Overloaded: This process has no descriptor left.
        """
        self._fd = -1
        path = file_of(key)
        try:
            # Without blocking on a FIFO, and without following symbolic links.
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise _unopened(key, "there is no such shared memory") from None
        except PermissionError:
            raise _unopened(key, "the server's user may not read and write it") from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise Overloaded("No descriptor is left for a shared memory region.") from None
            raise _unopened(key, os.strerror(error.errno or 0)) from None
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise _unopened(key, "it is no plain file")
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


def _unopened(key: str, why: str) -> StokerError:
    return InvalidInput(f"Unable to open shared memory region: {quoted(key)}: {why}")
