"""Nested lists of numbers in JSON as arrays: of parsed JSON, of what simdjson flattens, and of the native reader.

There may be millions of elements, and no other request is served meanwhile, so C code processes each level as a
whole. numpy never converts lists of lists itself: it would take texts and booleans for numbers, and pad each text to
the longest one, so that a few kilobytes become gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.wire.native import SWITCH, find_native, is_turned_off

_TYPES: Final[dict[str, frozenset[type]]] = {
    "b": frozenset([bool]),
    "i": frozenset([int]),
    "u": frozenset([int]),
    "f": frozenset([int, float]),
}
_WIDEST: Final = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}


class RaggedLists(ValueError):
    """Lists that are not a tensor: lists of one level have different lengths, or are next to something else.

    Attributes:
        level: The level of the list around them; the outermost list has level 1.
        expected: The expected length; None if a list is next to something else.
    """

    def __init__(self, level: int, size: int, expected: int | None) -> None:
        super().__init__(f"a list of {size} does not fit at level {level}")
        self.level = level
        self.size = size
        self.expected = expected


class Elements(NamedTuple):
    """The content of nested lists.

    Attributes:
        items: All elements in row-major order; not to be changed, because this may be the original list.
        shape: The lengths of the lists around them.
    """

    items: list[Any]
    types: set[type]
    shape: tuple[int, ...]


def elements_of(value: Any) -> Elements:
    """Flatten nested lists, or raise RaggedLists; a value that is not a list is one element."""
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
    """Return whether `numbers` accepts an element: a boolean is not a number, and a float is not an integer."""
    return type(item) in _TYPES[kind]


def numbers(elements: Elements, kind: str, *, nullable: bool = False) -> np.ndarray:
    """Return elements as a vector of the widest dtype of a kind; the caller checks and sets the shape.

    Args:
        kind: The kind of a numpy dtype: `b`, `i`, `u` or `f`.
        nullable: Whether they belong to a table: for kind `f`, None becomes NaN, and booleans become 1 and 0, as for
            estimators that were fitted on such columns.

    Raises:
        TypeError: An element has another type.
        OverflowError: A number does not fit the dtype.
    """
    others = elements.types - _TYPES[kind]
    if others and not (nullable and kind == "f" and others <= {type(None), bool}):
        raise TypeError("other elements than wanted")
    # numpy converts None to NaN.
    return np.array(elements.items, _WIDEST[kind])


BUFFERS: Final[dict[str, tuple[str, type[Any]]]] = {
    "f": ("d", np.float64),
    "i": ("i", np.int64),
    "u": ("u", np.uint64),
}
"""simdjson's buffer type for each kind of numpy dtype, and the dtype of the buffer."""

KEPT_BYTES: Final = 8 << 20
"""A parser keeps the memory of its largest document, many times its size; after longer documents it is replaced."""

_STRUCTURE: Final = b"[],"
"""The characters that structure lists; where a name contains them, shapes cannot be proved."""

_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in _STRUCTURE)


def holds_structure(name: str) -> bool:
    """Return whether a name contains brackets or commas, which would count as structure."""
    return not set(_STRUCTURE).isdisjoint(name.encode())


def structure(body: bytes) -> bytes:
    """Return only the brackets and commas of a JSON text."""
    return body.translate(None, _NOT_STRUCTURE)


def pattern(shape: Sequence[int]) -> bytes:
    """Return the brackets and commas of a nested list of this shape."""
    text = b""
    for size in reversed(shape):
        text = b"[" + ((text + b",") * size)[:-1] + b"]"
    return text


float32_rows_into: Final[Callable[..., bytes | None] | None] = find_native(
    "stoker_native", "float32_rows_into"
)
"""Returns the numbers of `{"data": [row, ...]}` as float32 in native byte order; None for any other body.

The arguments are the body, memory for one row or None, and the sizes of a row. A single row is written into that
memory, and the result is empty; if the result is None, the memory is overwritten all the same. The reader itself is
None where it is not installed or turned off.
"""


def native_rows_note() -> str:
    """Return a line about the reader that is used for rows of numbers in JSON."""
    if float32_rows_into is not None:
        return "rows of float32 are read in C++, by stoker-native"
    if is_turned_off():
        return f"rows are read by simdjson: {SWITCH}=0 leaves stoker-native out"
    if find_spec("stoker_native") is None:
        return (
            "rows are read by simdjson; stoker-native, which reads rows of float32 faster, is not installed"
        )
    return "rows are read by simdjson: there was no C++17 compiler when stoker-native was installed"
