"""Nested lists of parsed JSON, and the numbers in them as arrays.

There may be millions of elements, and nobody else is served meanwhile: so each level is looked at as a whole, at the
speed of C. What numpy would make of lists of lists is never asked for: it takes texts and booleans for numbers, and
makes a text as long as the longest of each element, so that a few kilobytes become gigabytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = [
    "BUFFERS",
    "KEPT_BYTES",
    "SWITCH",
    "Elements",
    "RaggedLists",
    "elements_of",
    "fits_kind",
    "float32_rows_into",
    "holds_structure",
    "native_rows_note",
    "numbers",
    "pattern",
    "structure",
]

_TYPES: Final[dict[str, frozenset[type]]] = {
    "b": frozenset([bool]),
    "i": frozenset([int]),
    "u": frozenset([int]),
    "f": frozenset([int, float]),
}
_WIDEST: Final = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}


class RaggedLists(ValueError):
    """Lists that are no tensor: those of one level have several lengths, or stand beside something else.

    Attributes:
        level: The level of the list around them; that of the outermost is 1.
        size: The length of a list that does not fit.
        expected: What it should be, or None where a list stands beside something else.
    """

    def __init__(self, level: int, size: int, expected: int | None) -> None:
        super().__init__(f"a list of {size} does not fit at level {level}")
        self.level = level
        self.size = size
        self.expected = expected


class Elements(NamedTuple):
    """What nested lists hold.

    Attributes:
        items: All elements in row-major order; not to be changed, for it may be the list itself.
        types: Their types.
        shape: The lengths of the lists around them.
    """

    items: list[Any]
    types: set[type]
    shape: tuple[int, ...]


def elements_of(value: Any) -> Elements:
    """Take nested lists apart; a value that is no list is one element.

    Raises:
        RaggedLists: They are no tensor.
    """
    items: list[Any] = [value]
    shape: list[int] = []
    while list in (types := set(map(type, items))):
        if len(items) == 1:
            items = items[0]
            shape.append(len(items))
            continue
        level = len(shape)
        if len(types) > 1:
            raise RaggedLists(level, len(next(item for item in items if isinstance(item, list))), None)
        sizes = list(map(len, items))
        if sizes.count(sizes[0]) < len(sizes):
            raise RaggedLists(level, next(size for size in sizes if size != sizes[0]), sizes[0])
        shape.append(sizes[0])
        items = list(chain.from_iterable(items))
    return Elements(items, types, tuple(shape))


def fits_kind(item: Any, kind: str) -> bool:
    """Whether `numbers` takes an element: a boolean is no number, and a float no integer."""
    return type(item) in _TYPES[kind]


def numbers(elements: Elements, kind: str, *, nullable: bool = False) -> np.ndarray:
    """Return elements as a vector of the widest dtype of a kind; their shape is still to be checked, and given to it.

    Args:
        elements: They are not coerced; see `fits_kind`.
        kind: The kind of a numpy dtype: `b`, `i`, `u` or `f`.
        nullable: Whether they are of a table: among numbers of the kind `f`, None becomes NaN, and booleans 1 and 0,
            as for estimators that were fitted on such columns.

    Raises:
        TypeError: There are others among them.
        OverflowError: A number does not fit the dtype.
    """
    others = elements.types - _TYPES[kind]
    if others and not (nullable and kind == "f" and others <= {type(None), bool}):
        raise TypeError("other elements than wanted")
    # numpy makes NaN of None where numbers are wanted.
    return np.array(elements.items, _WIDEST[kind])


BUFFERS: Final[dict[str, tuple[str, type[Any]]]] = {
    "f": ("d", np.float64),
    "i": ("i", np.int64),
    "u": ("u", np.uint64),
}
"""How simdjson names the buffer of a kind of numpy dtype, and the dtype of that."""

KEPT_BYTES: Final = 8 << 20
"""A parser keeps the memory of its largest document, many times the document's; behind longer ones it is replaced."""

_STRUCTURE: Final = b"[],"
"""What tells lists from each other; where names hold it, nothing can be proved."""

_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in _STRUCTURE)


def holds_structure(name: str) -> bool:
    """Whether what stands in a name would be taken for a list's brackets and commas."""
    return not set(_STRUCTURE).isdisjoint(name.encode())


def structure(body: bytes) -> bytes:
    """Return nothing but the brackets and commas of a JSON text."""
    return body.translate(None, _NOT_STRUCTURE)


def pattern(shape: Sequence[int]) -> bytes:
    """Return the brackets and commas of a nested list of this shape."""
    text = b""
    for size in reversed(shape):
        text = b"[" + ((text + b",") * size)[:-1] + b"]"
    return text


SWITCH: Final = "STOKER_NATIVE"
"""An environment variable: `0` leaves it out, so that what it does can be told from what everything else does."""


def _find() -> Callable[..., bytes | None] | None:
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        # Not the module: an earlier one has another function.
        from stoker_native import float32_rows_into as found
    except ImportError:
        return None
    reader: Callable[..., bytes | None] = found
    return reader


float32_rows_into: Final = _find()
"""Returns the numbers of `{"data": [row, ...]}` as float32, native byte order; None for any body but such rows.

It takes the body, memory for one row or None, and the sizes of a row. A single row is written into that memory, and
what is returned then is empty; where None is returned, what was there is lost all the same. None itself where it is
not used.
"""


def native_rows_note() -> str:
    """Return in a line what reads the rows of numbers in JSON."""
    if float32_rows_into is not None:
        return "rows of float32 are read in C++, by stoker-native"
    if os.environ.get(SWITCH) == "0":
        return f"rows are read by simdjson: {SWITCH}=0 leaves stoker-native out"
    return "rows are read by simdjson: stoker-native, which reads those of float32 sooner, is not installed"
