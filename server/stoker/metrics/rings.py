"""Rings of short records in shared memory: one process writes, any may read.

A record is numbered from 1; the number is written last, so one that is being written while it is read is left out.
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
"""The longest record."""


def ring_bytes(records: int) -> int:
    """How long a ring of so many records is."""
    return records * _ENTRY_BYTES


class Ring:
    """One ring.

    Args:
        memory: The memory that it is in.
        start: Where it begins there.
        records: How many it keeps.
    """

    __slots__ = ("_memory", "_records", "_start")

    def __init__(self, memory: mmap.mmap, start: int, records: int) -> None:
        self._memory, self._start, self._records = memory, start, records

    @property
    def newest(self) -> int:
        """The number of the newest record; 0 if there is none."""
        return max((number for number, _ in self.all()), default=0)

    def write(self, number: int, record: bytes) -> None:
        """Write a record of at most `RECORD_BYTES`, the one behind the newest; the oldest one goes."""
        start = self._place(number)
        body = start + _HEAD.size
        self._memory[start:body] = _HEAD.pack(0, len(record))
        self._memory[body : body + len(record)] = record
        # Last: until then the record has no number.
        self._memory[start:body] = _HEAD.pack(number, len(record))

    def all(self) -> Iterator[tuple[int, bytes]]:
        """All records with their numbers, in any order."""
        for place in range(self._records):
            number, record = self._read(self._start + place * _ENTRY_BYTES)
            if record is not None:
                yield number, record
            elif not number and place == 1:
                # The first record of all stands there: this ring has none.
                return

    def since(self, seen: int) -> tuple[list[bytes], int]:
        """Return the records behind number `seen`, the oldest first, and the number of the last one that was passed.

        Those that have been overwritten meanwhile are passed too. Whoever comes so late goes on half a ring behind
        the writer, which would overtake it again otherwise.
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
        """The number at a place, and its record; None where there is none, or it is being written."""
        head = _HEAD.unpack_from(self._memory, start)
        number, length = head
        if not number:
            return 0, None
        record = self._memory[start + _HEAD.size : start + _HEAD.size + length]
        return number, record if _HEAD.unpack_from(self._memory, start) == head else None
