"""Which regions of callers are registered: a table in shared memory that all frontends have.

A change is made by one process at a time: it writes the whole table beside the one that holds, and then counts. So
who looks compares one number, and a process that dies amid a change has changed nothing.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import orjson

__all__ = ["CudaPlace", "FilePlace", "Place", "RegionTable", "Registration"]

_TABLE_BYTES: Final = 4 << 20
"""Room for all regions there may be, with the longest names in the longest way to write them."""
_HEAD_BYTES: Final = 4096
_CHANGES, _SIZES = 0, 1
"""Words of the head: how often the table was changed, and the length of each of the two."""


class FilePlace(NamedTuple):
    """Where a region of system shared memory is.

    Attributes:
        key: The name of the shared memory, as `shm_open` takes it.
        offset_bytes: Where the region begins in that.
        device, inode: Which file that was.
    """

    key: str
    offset_bytes: int
    device: int
    inode: int


class CudaPlace(NamedTuple):
    """Where a region of a GPU's memory is: it begins with the allocation.

    Attributes:
        handle: CUDA's handle of the allocation, in Base64.
        device_id: The GPU, by its number in CUDA.
    """

    handle: str
    device_id: int


Place = FilePlace | CudaPlace
_KINDS: Final[dict[str, type[FilePlace | CudaPlace]]] = {"system": FilePlace, "cuda": CudaPlace}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


class Registration(NamedTuple):
    """A region that a caller has registered.

    Attributes:
        number: Its own, also where a later one has the same name.
        name: What callers call it.
        size_bytes: How long it is.
        place: Where it is.
    """

    number: int
    name: str
    size_bytes: int
    place: Place

    def written(self) -> tuple[object, ...]:
        """What the table has of it; see `read`."""
        return (self.number, self.name, self.size_bytes, _NAMES[type(self.place)], tuple(self.place))

    @classmethod
    def read(cls, number: int, name: str, size_bytes: int, kind: str, place: list[Any]) -> Registration:
        """Return what `written` has written."""
        return cls(number, name, size_bytes, _KINDS[kind](*place))


class RegionTable:
    """One process's view of the table.

    Args:
        fd: Shared memory, which the table owns; new memory has nothing registered.
    """

    def __init__(self, fd: int) -> None:
        # Kept open: closing any descriptor of a file gives up the locks that the process has on it.
        self._fd = fd
        os.ftruncate(fd, _HEAD_BYTES + 2 * _TABLE_BYTES)
        self._memory = memoryview(mmap.mmap(fd, _HEAD_BYTES + 2 * _TABLE_BYTES))
        self._head = self._memory[:_HEAD_BYTES].cast("Q")
        self._seen = -1
        self._known: dict[str, Registration] = {}

    @property
    def registered(self) -> Mapping[str, Registration]:
        """What is registered now, by name."""
        while (changes := self._head[_CHANGES]) != self._seen:
            content = bytes(self._half(changes)[: self._head[_SIZES + changes % 2]])
            # Two changes later this half is written again.
            if self._head[_CHANGES] == changes:
                listed = orjson.loads(content) if content else []
                self._known = {entry[1]: Registration.read(*entry) for entry in listed}
                self._seen = changes
        return self._known

    def change(self, make: Callable[[dict[str, Registration], int], None]) -> None:
        """Change the table, as seen by all processes at once.

        Args:
            make: Changes what is registered by name, given a number that no region has had; what it raises is raised,
                and nothing has been changed then.
        """
        with self._locked():
            changes = self._head[_CHANGES]
            registered = dict(self.registered)
            make(registered, changes + 1)
            content = orjson.dumps([entry.written() for entry in registered.values()])
            self._half(changes + 1)[: len(content)] = content
            self._head[_SIZES + (changes + 1) % 2] = len(content)
            self._head[_CHANGES] = changes + 1

    def _half(self, changes: int) -> memoryview:
        begin = _HEAD_BYTES + changes % 2 * _TABLE_BYTES
        return self._memory[begin : begin + _TABLE_BYTES]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Of the process, not of the descriptor, which came from the supervisor and is the same for all.
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
