"""The state of a tensor during the analysis of a graph: how it depends on the rows of the batch, and its shape.

Sizes are products of a number, of N (the rows of the batch) and of free sizes, so that a Reshape can be followed
through `[N, S, 768] -> [N·S, 768]` without a number for N or S.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from stoker.isolation.onnx.reasons import UNKNOWN_AXIS

__all__ = [
    "ROWS",
    "Content",
    "Dim",
    "Mixed",
    "Shape",
    "Size",
    "Undecided",
    "Value",
    "depends_on_rows",
    "elements",
    "joined",
    "lost",
    "of_rows",
    "product",
    "quotient",
    "same",
    "sized",
    "worst",
]


@dataclass(frozen=True, slots=True)
class Size:
    """A symbolic size: `factor` · N^`rows` · the sizes named in `free`; it has N or at least one free size."""

    factor: int
    rows: int
    free: tuple[str, ...] = ()


Dim = int | Size | None
"""One size; None if nothing is known of it, not even whether it is the same for all batches."""
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
    """The product of sizes; None if one is unknown."""
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
    """`size` / `divisor` if divisible for all N and free sizes; else None."""
    if size is None or divisor is None or divisor == 0:
        return None
    whole = size if isinstance(size, Size) else Size(size, 0)
    part = divisor if isinstance(divisor, Size) else Size(divisor, 0)
    left = Counter(whole.free)
    left.subtract(part.free)
    if whole.factor % part.factor or whole.rows < part.rows or any(count < 0 for count in left.values()):
        return None
    return _size(whole.factor // part.factor, whole.rows - part.rows, left.elements())


def depends_on_rows(size: float | Size | None) -> bool:
    """Whether a size is known to change with N."""
    return isinstance(size, Size) and size.rows > 0


class Mixed(Exception):
    """An operator lets one row affect another; the message says which."""


class Undecided(Exception):
    """It is not known whether an operator mixes rows; the message says which."""


Kind = Literal["same", "sized", "rows", "lost"]


@dataclass(frozen=True, slots=True)
class Value:
    """The state of a tensor.

    Attributes:
        kind: `same` if it is the same for every batch, `sized` if it depends on N but on nothing else of the batch,
            `rows` if each part of it along `axis` depends on one row only, `lost` if rows are mixed in it, or
            that is not known.
        shape: Its shape; None if the rank is unknown. That of `rows` is known.
        axis: The batch axis of `rows`; its size is a multiple of N, and that many neighbours belong to one row.
        content: Its elements, if they are few and known.
        finding: For `lost`: `mixed` or `unknown`.
        reason: For `lost`: the sentence that names the node.
    """

    kind: Kind
    shape: Shape | None = None
    axis: int = 0
    content: Content | None = None
    finding: Literal["mixed", "unknown"] = "unknown"
    reason: str = ""

    @property
    def rank(self) -> int | None:
        """The number of axes; None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_rows(self) -> bool:
        """Whether it has the rows of the batch, not mixed."""
        return self.kind == "rows"


def same(shape: Sequence[Dim] | None = None, content: Content | None = None) -> Value:
    """A tensor that is the same for every batch."""
    return Value("same", None if shape is None else tuple(shape), content=content)


def sized(shape: Sequence[Dim] | None = None, content: Content | None = None) -> Value:
    """A tensor that depends on N alone."""
    return Value("sized", None if shape is None else tuple(shape), content=content)


def of_rows(shape: Sequence[Dim], axis: int) -> Value:
    """A tensor whose rows are not mixed.

    Raises:
        Undecided: Its size along the axis is not known to be a multiple of N.
    """
    size = shape[axis]
    if not isinstance(size, Size) or size.rows != 1:
        raise Undecided(UNKNOWN_AXIS)
    return Value("rows", tuple(shape), axis)


def lost(finding: Literal["mixed", "unknown"], reason: str) -> Value:
    """A tensor in which rows are mixed, or may be."""
    return Value("lost", finding=finding, reason=reason)


def worst(values: Iterable[Value | None]) -> Value | None:
    """The first lost value that is mixed, else the first lost one, else None."""
    found = [value for value in values if value is not None and value.kind == "lost"]
    return next((value for value in found if value.finding == "mixed"), found[0] if found else None)


def joined(first: Value, second: Value) -> Value | None:
    """The state of a tensor that has either one state or the other; None if nothing is known of it."""
    if "lost" in {first.kind, second.kind}:
        return worst([first, second])
    if first == second:
        return first
    if {first.kind, second.kind} <= {"same", "sized"}:
        kind: Kind = "same" if first.kind == second.kind == "same" else "sized"
        return Value(kind, _joined_shape(first.shape, second.shape))
    if not (first.is_rows and second.is_rows and first.axis == second.axis):
        return None
    shape = _joined_shape(first.shape, second.shape)
    if shape is None or shape[first.axis] is None:
        return None
    return replace(first, shape=shape)


def _joined_shape(first: Shape | None, second: Shape | None) -> Shape | None:
    if first is None or second is None or len(first) != len(second):
        return None
    return tuple(a if a == b else None for a, b in zip(first, second, strict=True))


def elements(shape: Shape | None) -> int | None:
    """The number of elements of a tensor; None if it is unknown or symbolic."""
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    return math.prod(size for size in shape if isinstance(size, int))
