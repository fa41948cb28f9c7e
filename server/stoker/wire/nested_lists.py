"""Nested lists of parsed JSON, and the numbers in them as arrays.

There may be millions of elements, and nobody else is served meanwhile: so each level is looked at as a whole, at the
speed of C. What numpy would make of lists of lists is never asked for: it takes texts and booleans for numbers, and
makes a text as long as the longest of each element, so that a few kilobytes become gigabytes.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = ["Elements", "RaggedLists", "elements_of", "fits_kind", "numbers"]

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
