"""The states of tensors while the batch axis is followed through a TensorFlow graph."""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct


class Size(Enum):
    """A symbolic size."""

    ROWS = "the number of rows in the batch"
    FIXED = "unknown, and the same in all batches"
    VARYING = "unknown, and different for different numbers of rows"


class Plain(Struct, frozen=True):
    """A tensor that does not depend on the contents of any row.

    Attributes:
        value: Its integers as nested tuples of `int` and `Size`, as far as known; None if unknown.
        varies: Whether it may depend on the number of rows.
    """

    value: Any = None
    varies: bool = False

    @classmethod
    def of(cls, value: Any) -> Plain:
        """The state of a tensor with these integers."""
        return cls(value, _varies(value))

    @property
    def numbers(self) -> tuple[Any, ...] | None:
        """Its value as a vector, or a scalar as a vector of one; None if it is unknown or has more axes."""
        if self.value is None:
            return None
        value = self.value if isinstance(self.value, tuple) else (self.value,)
        return None if any(isinstance(item, tuple) for item in value) else value


def _varies(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_varies, value))
    return value in (Size.ROWS, Size.VARYING)


class Rows(Struct, frozen=True):
    """One axis is the batch axis; the elements at a row's position depend on that row alone, whatever its position.

    Attributes:
        exact: Whether it has one index for each row; else each row has several adjacent ones, equally many.
    """

    axis: int
    exact: bool = True


class Listed(Struct, frozen=True):
    """A list of tensors, which is not one tensor for each row.

    Attributes:
        item: The common state of its tensors; None for an empty list.
    """

    item: Plain | Rows | None = None


class Mixed(Struct, frozen=True):
    """A tensor that depends on several rows at once.

    Attributes:
        node: The operator that joined them, by type and name.
    """

    node: str


class Unknown(Struct, frozen=True):
    """A tensor of unknown dependence on the rows.

    Attributes:
        node: The first operator that is not understood, by type and name.
    """

    node: str


State = Plain | Rows | Listed | Mixed | Unknown


def join(one: State, other: State, node: str) -> State:
    """The state of a tensor that has either one state or the other."""
    if one == other:
        return one
    for state in (one, other):
        if isinstance(state, Unknown):
            return state
    if isinstance(one, Plain) and isinstance(other, Plain):
        return Plain(None, one.varies or other.varies)
    if isinstance(one, Rows) and isinstance(other, Rows) and one.axis == other.axis:
        return Rows(one.axis, one.exact and other.exact)
    if isinstance(one, Listed) and isinstance(other, Listed):
        if one.item is None or other.item is None:
            return one if other.item is None else other
        item = join(one.item, other.item, node)
        return Listed(item) if isinstance(item, Plain | Rows) else item
    return Unknown(node)


def node_of(op: Any) -> str:
    """The name of an operator in messages: its type and its name."""
    return f"{op.type} {op.name!r}"
