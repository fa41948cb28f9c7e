"""A message of protobuf as its fields by number, without a schema."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from stoker.wire.protobuf import BYTES, VARINT, Buffer, Field, field, fields_of, packed, signed


class Message:
    """A message. Its fields are found once; their contents are read on access.

    Of a field that is not repeated the last value counts.

    Attributes:
        is_whole: Whether all of its fields were found.
    """

    __slots__ = ("_data", "_fields", "is_whole")

    def __init__(
        self, data: Buffer, begin: int = 0, end: int | None = None, most_fields: int | None = None
    ) -> None:
        """Find the fields of the message between two offsets.

        Args:
            most_fields: The number of fields to find at most; None for all.

        Raises:
            MalformedMessage, IndexError: The bytes are not the fields of a message.
        """
        self._data = data
        self._fields: defaultdict[int, list[Field]] = defaultdict(list)
        found = fields_of(data, begin, len(data) if end is None else end)
        for each in islice(found, most_fields):
            self._fields[each[0]].append(each)
        self.is_whole = next(found, None) is None

    def has(self, number: int) -> bool:
        """Whether there is a field of this number."""
        return number in self._fields

    def size_bytes(self, *numbers: int) -> int:
        """The length of all values of these fields."""
        return sum(stop - start for number in numbers for _, _, _, start, stop in self._of(number))

    def joined(self, number: int) -> bytes:
        """The contents of a repeated field of numbers of a fixed size, packed or not."""
        return b"".join(self.contents(number))

    def contents(self, number: int) -> list[bytes]:
        """The values of a repeated field of bytes."""
        return [self._data[start:stop] for _, _, _, start, stop in self._of(number)]

    def content(self, number: int) -> bytes:
        """Bytes; none if they are missing."""
        return self.contents(number)[-1] if number in self._fields else b""

    def texts(self, number: int) -> list[str]:
        """The values of a repeated field of texts."""
        return [
            self._data[start:stop].decode("utf-8", "surrogateescape")
            for _, _, _, start, stop in self._of(number)
        ]

    def text(self, number: int) -> str:
        """A text; empty if it is missing."""
        return self.texts(number)[-1] if number in self._fields else ""

    def integers(self, number: int) -> list[int]:
        """The values of a repeated field of integers, packed or not."""
        values: list[int] = []
        for _, wire, value, start, stop in self._of(number):
            values += [signed(value)] if wire == VARINT else packed(self._data, start, stop)
        return values

    def integer(self, number: int) -> int:
        """An integer; 0 if it is missing."""
        return self.integers(number)[-1] if number in self._fields else 0

    def messages(self, number: int, most_fields: int | None = None) -> Iterator[Message]:
        """Yield the values of a repeated field of messages, of each the first `most_fields` fields."""
        for _, _, _, start, stop in self._of(number):
            yield Message(self._data, start, stop, most_fields)

    def message(self, number: int) -> Message:
        """A message; an empty one if it is missing."""
        *_, start, stop = self._of(number)[-1] if number in self._fields else (0, 0)
        return Message(self._data, start, stop)

    def _of(self, number: int) -> Sequence[Field]:
        return self._fields.get(number, ())


def change_fields(
    content: bytes, number: int, change: Callable[[bytes], bytes], most: int | None = None
) -> bytes:
    """Return a message with its fields of bytes of a number changed, at most the first `most` of them."""
    parts, last, done = [], 0, 0
    for found, wire, _, start, stop in fields_of(content, 0, len(content)):
        if (found, wire) == (number, BYTES) and (most is None or done < most):
            parts.append(field(number, change(content[start:stop])))
            done += 1
        else:
            parts.append(content[last:stop])
        last = stop
    return b"".join(parts)
