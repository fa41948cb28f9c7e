"""A lock on a byte of a file that processes share; the kernel releases it when its process ends (decision 30)."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

_FLOCK: Final = "hhqqi0q"


class ByteLock:
    """A lock on one byte of the file at a time, with an open file description of its own.

    Attributes:
        fd: The descriptor of the opened file.
    """

    def __init__(self, fd: int, place: int) -> None:
        """Open the file that `fd` is anew."""
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._place = place

    def close(self) -> None:
        """Close the descriptor, which releases the lock."""
        os.close(self.fd)

    def lock(self) -> None:
        """Wait for the lock."""
        self._lock(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, None)

    def try_lock(self, place: int | None = None) -> bool:
        """Take the lock if it is free; returns whether it was."""
        try:
            self._lock(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, place)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self, place: int | None = None) -> None:
        """Release the lock, whether it is held or not; on any thread."""
        self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, place)

    def _lock(self, command: int, kind: int, place: int | None) -> None:
        start = self._place if place is None else place
        fcntl.fcntl(self.fd, command, struct.pack(_FLOCK, kind, os.SEEK_SET, start, 1, 0))
