"""Sizes of tensors while the batch axis is followed.

Sizes are products of a number, of N (the rows of the batch) and of free sizes, so that a Reshape can be followed
through `[N, S, 768] -> [N·S, 768]` without a number for N or S.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct


class Size(Struct, frozen=True):
    """A symbolic size: `factor` · N^`rows` · the sizes named in `free`; it has N or at least one free size."""

    factor: int
    rows: int
    free: tuple[str, ...] = ()


Dim = int | Size | None
"""One size; None if it is unknown, also whether it is the same for all batches."""
Shape = tuple[Dim, ...]
Content = tuple[float | Size | None, ...]
"""The elements of a small tensor, flat; None for unknown ones."""

ROWS: Final = Size(1, 1)
"""The size N."""


def _size(factor: int, rows: int, free: Iterable[str]) -> Dim:
    names = tuple(sorted(free))
    if factor == 0 or (rows == 0 and not names):
        return factor
    return Size(factor, rows, names)


def product(sizes: Iterable[Dim]) -> Dim:
    """Return the product of sizes; None if one is unknown."""
    factor, rows = 1, 0
    free: list[str] = []
    for size in sizes:
        if size is None:
            return None
        if isinstance(size, Size):
            factor, rows = factor * size.factor, rows + size.rows
            free += size.free
        else:
            factor *= size
    return _size(factor, rows, free)


def quotient(size: Dim, divisor: Dim) -> Dim:
    """Return `size` / `divisor` if divisible for all N and free sizes; else None."""
    if size is None or divisor is None or divisor == 0:
        return None
    whole = size if isinstance(size, Size) else Size(size, 0)
    part = divisor if isinstance(divisor, Size) else Size(divisor, 0)
    rest = Counter(whole.free)
    rest.subtract(part.free)
    if whole.factor % part.factor or whole.rows < part.rows or any(count < 0 for count in rest.values()):
        return None
    return _size(whole.factor // part.factor, whole.rows - part.rows, rest.elements())


def depends_on_rows(size: float | Size | None) -> bool:
    """Whether a size is known to change with N."""
    return isinstance(size, Size) and size.rows > 0


def elements(shape: Shape | None) -> int | None:
    """Return the number of elements of a tensor; None if it is unknown or symbolic."""
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    return math.prod(size for size in shape if isinstance(size, int))


def wider(first: Dim, second: Dim) -> Dim:
    """Return the size that results from broadcasting two sizes."""
    if first == 1 or first == second:
        return second
    if second == 1:
        return first
    for size in (first, second):
        if isinstance(size, int):
            return size
    return None if first is None or second is None else first
