"""What is known of a tensor while the batch axis is followed through a graph."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Listed", "Mixed", "Plain", "Rows", "Size", "State", "Unknown", "join"]


class Size(Enum):
    """A size that is no number yet."""

    ROWS = "the number of rows in the batch"
    SOME = "unknown, and the same whatever else is in the batch"
    VARYING = "unknown, and another one for another number of rows"


@dataclass(frozen=True, slots=True)
class Plain:
    """Nothing of it depends on what a row holds.

    Attributes:
        value: Its integers as nested tuples of `int` and `Size`, as far as they are known; None if they are not.
        varies: Whether it may depend on the number of rows.
    """

    value: Any = None
    varies: bool = False

    @classmethod
    def of(cls, value: Any) -> Plain:
        """A tensor of these integers."""
        return cls(value, _varies(value))

    @property
    def numbers(self) -> tuple[Any, ...] | None:
        """Its value as a vector, also of a scalar; None if it is unknown, or no vector."""
        if self.value is None:
            return None
        value = self.value if isinstance(self.value, tuple) else (self.value,)
        return None if any(isinstance(item, tuple) for item in value) else value


def _varies(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_varies, value))
    return value in (Size.ROWS, Size.VARYING)


@dataclass(frozen=True, slots=True)
class Rows:
    """One axis is the batch, and what is at a row's place there follows from that row alone, wherever it stands.

    Attributes:
        axis: That axis.
        exact: Whether it has one place for each row; else it has some, as many for each, next to each other.
    """

    axis: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of tensors, not one for each row.

    Attributes:
        item: What holds for each of them; None for a list in which nothing is yet.
    """

    item: Plain | Rows | None = None


@dataclass(frozen=True, slots=True)
class Mixed:
    """It depends on several rows at once.

    Attributes:
        node: The operator that has joined them, by type and name.
    """

    node: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing is known of it.

    Attributes:
        node: The first operator of which that holds, by type and name.
    """

    node: str


State = Plain | Rows | Listed | Mixed | Unknown


def join(one: State, other: State, node: str) -> State:
    """What holds for a tensor that is one or the other.

    Args:
        one: The one.
        other: The other.
        node: The operator that chooses.
    """
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
