"""The table of registered regions, in shared memory of all frontends.

One process at a time changes it: it writes the whole table into the half of the memory that is not in use, and then
increments a counter. So a reader compares one number, and a process that dies during a change has changed nothing.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct

_TABLE_BYTES: Final = 4 << 20
"""Room for the largest number of regions, with the longest names in their longest encoding."""
_HEAD_BYTES: Final = 4096
_CHANGES, _SIZES = 0, 1
"""Words of the header: the number of changes, and the length of each half."""


class FileLocation(Struct, frozen=True, array_like=True, tag="system"):
    """Where a region of system shared memory is.

    Attributes:
        key: The name of the shared memory object, as for `shm_open`.
        device, inode: The identity of the file when it was registered.
    """

    key: str
    offset_bytes: int
    device: int
    inode: int

    @property
    def described(self) -> dict[str, Any]:
        """Its fields in the form of the protocol."""
        return {"key": self.key, "offset": self.offset_bytes}


class CudaLocation(Struct, frozen=True, array_like=True, tag="cuda"):
    """Where a region on a GPU is: at the start of an allocation.

    Attributes:
        handle: CUDA's IPC handle of the allocation, in Base64.
    """

    offset_bytes: ClassVar[int] = 0

    handle: str
    device_id: int

    @property
    def described(self) -> dict[str, Any]:
        """Its fields in the form of the protocol."""
        return {"device_id": self.device_id}


Location = FileLocation | CudaLocation


class Registration(Struct, frozen=True, array_like=True):
    """A region that a caller has registered.

    Attributes:
        number: Unique, also among later regions of the same name.
    """

    number: int
    name: str
    size_bytes: int
    location: Location


_REGISTRATIONS = msgspec.json.Decoder(list[Registration])


class RegionTable:
    """One process's view of the table in the shared memory `fd`, which it owns; new memory has no regions."""

    def __init__(self, fd: int) -> None:
        # Kept open: closing any descriptor of a file releases the locks that the process has on it.
        self._fd = fd
        os.ftruncate(fd, _HEAD_BYTES + 2 * _TABLE_BYTES)
        self._memory = memoryview(mmap.mmap(fd, _HEAD_BYTES + 2 * _TABLE_BYTES))
        self._head = self._memory[:_HEAD_BYTES].cast("Q")
        self._seen = -1
        self._known: dict[str, Registration] = {}

    @property
    def registered(self) -> Mapping[str, Registration]:
        """The registered regions by name."""
        while (changes := self._head[_CHANGES]) != self._seen:
            content = bytes(self._half(changes)[: self._head[_SIZES + changes % 2]])
            # Two changes later this half is overwritten.
            if self._head[_CHANGES] == changes:
                listed = _REGISTRATIONS.decode(content) if content else []
                self._known = {entry.name: entry for entry in listed}
                self._seen = changes
        return self._known

    def change(self, make: Callable[[dict[str, Registration], int], None]) -> None:
        """Change the table, atomically for all processes.

        Args:
            make: Called with the registrations by name, which it changes, and with an unused number; if it raises,
                nothing is changed, and the error is passed on.
        """
        with self._locked():
            changes = self._head[_CHANGES]
            registered = dict(self.registered)
            make(registered, changes + 1)
            content = msgspec.json.encode(list(registered.values()))
            self._half(changes + 1)[: len(content)] = content
            self._head[_SIZES + (changes + 1) % 2] = len(content)
            self._head[_CHANGES] = changes + 1

    def _half(self, changes: int) -> memoryview:
        begin = _HEAD_BYTES + changes % 2 * _TABLE_BYTES
        return self._memory[begin : begin + _TABLE_BYTES]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock of the process, not of the open file: the descriptor came from the supervisor and is shared by all.
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
