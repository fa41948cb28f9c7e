"""Protobuf's wire format: fields by number, without a schema, and read without copies.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, overload

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_SEPTETS: Final = [bytes((value,)) for value in range(128)]

_WINDOW_BYTES: Final = 1 << 16


class FileBytes:
    """The bytes of an open file, read on access; the descriptor has to stay open.

    The file is not mapped, because truncating a mapped file ends its readers by SIGBUS. Reading past the end raises
    IndexError.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._length = os.fstat(descriptor).st_size
        self._window, self._begin, self._end = b"", 0, 0

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> bytes: ...

    def __getitem__(self, place: int | slice) -> int | bytes:
        if isinstance(place, slice):
            begin, end, _ = place.indices(self._length)
            found = os.pread(self._descriptor, max(0, end - begin), begin)
            if len(found) < end - begin:
                raise IndexError(f"the file ends before byte {end}")
            return found
        if not self._begin <= place < self._end:
            self._window = os.pread(self._descriptor, _WINDOW_BYTES, place)
            self._begin, self._end = place, place + len(self._window)
        return self._window[place - self._begin]


Buffer = bytes | FileBytes
Field = tuple[int, int, int, int, int]
"""Number, wire type, the value of a varint, and the offsets of the content's begin and end."""


class MalformedMessage(ValueError):
    """The bytes are not the fields of a message."""


def fields_of(data: Buffer, begin: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message between two offsets, without copies; raises MalformedMessage or IndexError."""
    position = begin
    while position < end:
        key = data[position]
        position += 1
        if key & 0x80:
            key, position = read_varint(data, position - 1)
        wire = key & 7
        value = 0
        start = position
        if wire == BYTES:
            size = data[position]
            position += 1
            if size & 0x80:
                size, position = read_varint(data, position - 1)
            start = position
            position += size
        elif wire == VARINT:
            value = data[position]
            position += 1
            if value & 0x80:
                value, position = read_varint(data, position - 1)
        elif wire == FIXED32:
            position += 4
        elif wire == FIXED64:
            position += 8
        else:
            raise MalformedMessage(f"wire type {wire} at byte {position}")
        if position > end:
            raise MalformedMessage(f"a field at byte {start} is longer than its message")
        yield key >> 3, wire, value, start, position


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise MalformedMessage(f"a number at byte {position} has too many bytes")


def signed(value: int) -> int:
    """Return a number as a signed int64 of protobuf."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def packed(data: Buffer, begin: int, end: int) -> list[int]:
    """Return the integers of a packed field."""
    values = []
    position = begin
    while position < end:
        value, position = read_varint(data, position)
        values.append(signed(value))
    return values


def varint_bytes(value: int) -> bytes:
    """Encode a non-negative number."""
    if value <= 0x7F:
        return _SEPTETS[value]
    septets = bytearray()
    while value > 0x7F:
        septets.append(value & 0x7F | 0x80)
        value >>= 7
    septets.append(value)
    return bytes(septets)


def length_delimited(number: int, size_bytes: int) -> bytes:
    """Return the head of a field of bytes or of a message, with a number below 16."""
    return _SEPTETS[number << 3 | BYTES] + varint_bytes(size_bytes)


def field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes or of a message, with a number below 16."""
    return length_delimited(number, len(content)) + content
