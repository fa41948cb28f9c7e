"""Rings of short records in shared memory: one process writes, any may read.

Records are numbered from 1; the number is written last, so a record that is written while it is read is skipped.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Final

__all__ = ["RECORD_BYTES", "Ring", "ring_bytes"]

_ENTRY_BYTES: Final = 512
_HEAD: Final = struct.Struct("=qq")
RECORD_BYTES: Final = _ENTRY_BYTES - _HEAD.size
"""The maximum length of a record."""


def ring_bytes(records: int) -> int:
    """The size of a ring with this many records."""
    return records * _ENTRY_BYTES


class Ring:
    """A ring.

    Args:
        memory: The memory that holds it.
        start: Its offset there.
        records: Number of records that it keeps.
    """

    __slots__ = ("_memory", "_records", "_start")

    def __init__(self, memory: mmap.mmap, start: int, records: int) -> None:
        self._memory, self._start, self._records = memory, start, records

    @property
    def newest(self) -> int:
        """The number of the newest record; 0 if there is none."""
        return max((number for number, _ in self.all()), default=0)

    def write(self, number: int, record: bytes) -> None:
        """Write a record of at most `RECORD_BYTES` after the newest; the oldest one is overwritten."""
        start = self._place(number)
        body = start + _HEAD.size
        self._memory[start:body] = _HEAD.pack(0, len(record))
        self._memory[body : body + len(record)] = record
        # Last, so that readers skip the record until it is complete.
        self._memory[start:body] = _HEAD.pack(number, len(record))

    def all(self) -> Iterator[tuple[int, bytes]]:
        """Yield all records with their numbers, in any order."""
        for place in range(self._records):
            number, record = self._read(self._start + place * _ENTRY_BYTES)
            if record is not None:
                yield number, record
            elif not number and place == 1:
                # The first record ever written is stored here, so the ring is empty.
                return

    def since(self, seen: int) -> tuple[list[bytes], int]:
        """Return the records after number `seen`, the oldest first, and the number of the last one that was passed.

        Records that were overwritten meanwhile count as passed. A reader that has fallen behind so far continues half
        a ring behind the writer, so that it is not overtaken again at once.
        """
        found: list[bytes] = []
        while True:
            number, record = self._read(self._place(seen + 1))
            if number > seen + 1:
                seen = number - self._records // 2 - 1
            elif record is None or number <= seen:
                return found, seen
            else:
                seen = number
                found.append(record)

    def _place(self, number: int) -> int:
        return self._start + number % self._records * _ENTRY_BYTES

    def _read(self, start: int) -> tuple[int, bytes | None]:
        """Return the number at a position and its record; None if there is no record, or it is being written."""
        head = _HEAD.unpack_from(self._memory, start)
        number, length = head
        if not number:
            return 0, None
        record = self._memory[start + _HEAD.size : start + _HEAD.size + length]
        return number, record if _HEAD.unpack_from(self._memory, start) == head else None
