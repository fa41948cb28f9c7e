"""The state of a tensor during the analysis of a graph: how it depends on the rows of the batch, and its shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from stoker.isolation.onnx.sizes import Content, Dim, Shape, Size


class Mixed(Exception):
    """An operator lets one row affect another; the message says which."""


class Undecided(Exception):
    """It is not known whether an operator mixes rows; the message says which."""


Kind = Literal["same", "sized", "rows", "lost"]


class Value(Struct, frozen=True):
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
    """Return the state of a tensor that is the same for every batch."""
    return Value("same", None if shape is None else tuple(shape), content=content)


def sized(shape: Sequence[Dim] | None = None, content: Content | None = None) -> Value:
    """Return the state of a tensor that depends on N alone."""
    return Value("sized", None if shape is None else tuple(shape), content=content)


def of_rows(shape: Sequence[Dim], axis: int) -> Value:
    """Return the state of a tensor whose rows are not mixed.

    Raises:
        Undecided: Its size along the axis is not known to be a multiple of N.
    """
    size = shape[axis]
    if not isinstance(size, Size) or size.rows != 1:
        raise Undecided(UNKNOWN_AXIS)
    return Value("rows", tuple(shape), axis)


def lost(finding: Literal["mixed", "unknown"], reason: str) -> Value:
    """Return the state of a tensor in which rows are mixed, or may be."""
    return Value("lost", finding=finding, reason=reason)


def worst(values: Iterable[Value | None]) -> Value | None:
    """Return the first lost value that is mixed, else the first lost one, else None."""
    found = [value for value in values if value is not None and value.kind == "lost"]
    return next((value for value in found if value.finding == "mixed"), found[0] if found else None)


def joined(first: Value, second: Value) -> Value | None:
    """Return the state of a tensor that has either one state or the other; None if that is not known."""
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


UNKNOWN_AXIS: Final = "makes an axis whose relation to the rows is not known"
