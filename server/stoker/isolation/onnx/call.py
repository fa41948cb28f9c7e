"""One node of a graph with what is known of its inputs, as the rules of operators see it; and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NoReturn, TypeVar

from stoker.isolation.onnx.graph import Attribute, Node
from stoker.isolation.onnx.reasons import CONSTANT_BY_PLACE
from stoker.isolation.onnx.values import (
    Content,
    Dim,
    Mixed,
    Shape,
    Size,
    Undecided,
    Value,
    of_rows,
    same,
)

__all__ = ["MICROSOFT", "ML", "RULES", "Call", "Rule", "rule"]

MICROSOFT: Final = "com.microsoft"
ML: Final = "ai.onnx.ml"
_names = count()


@dataclass(frozen=True, slots=True)
class Call:
    """A node at work.

    Attributes:
        node: The node.
        inputs: What is known of its inputs; None for those that are left out. None of them is `lost`.
        opset: The version of the operators of the node's domain.
        attributes: Its attributes.
    """

    node: Node
    inputs: Sequence[Value | None]
    opset: int
    attributes: Mapping[str, Attribute]

    def mixed(self, what: str) -> NoReturn:
        """Raise Mixed: this node does it."""
        raise Mixed(f"{self.node} {what}")

    def undecided(self, what: str) -> NoReturn:
        """Raise Undecided: this node does it."""
        raise Undecided(f"{self.node} {what}")

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """An input that has to be there."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            self.undecided("lacks an input")
        return value

    def shape(self, index: int) -> Shape:
        """The sizes of an input, whose rank has to be known."""
        shape = self.value(index).shape
        if shape is None:
            self.undecided("takes a tensor of unknown rank")
        return shape

    def integer(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else self.undecided(f"has no number as {name}")

    def text(self, name: str, default: str = "") -> str:
        """An attribute that is a word."""
        value = self.attributes.get(name, default.encode())
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of whole numbers; None if it is not given."""
        value = self.attributes.get(name)
        if value is None and name not in self.attributes:
            return None
        if isinstance(value, tuple) and all(isinstance(number, int) for number in value):
            return tuple(int(number) for number in value)
        return self.undecided(f"has no numbers as {name}")

    def content(self, index: int) -> Content:
        """The numbers of an input, which have to be known in their number."""
        content = self.value(index).content
        if content is None:
            self.undecided("takes a parameter that is computed")
        return content

    def numbers(self, index: int) -> tuple[int, ...]:
        """The numbers of an input, which have to be constant and whole."""
        content = self.content(index)
        if any(number is None or isinstance(number, Size) or number != int(number) for number in content):
            self.undecided("takes a parameter that is computed")
        return tuple(int(number) for number in content if isinstance(number, int | float))

    def list_of(self, name: str) -> tuple[int, ...] | None:
        """What was an attribute once and is the second input now; None if neither is given."""
        return self.numbers(1) if self.has(1) else self.integers(name)

    def axis(self, default: int) -> int:
        """The attribute that names an axis of the first input, counted from the front."""
        return self.from_front(self.integer("axis", default), len(self.shape(0)))

    def from_front(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= axis <= rank:
            self.undecided(f"has no axis {axis}")
        return axis + rank if axis < 0 else axis

    def batch_axis(self, index: int) -> int | None:
        """The axis of the rows of an input; None if it has none."""
        value = self.inputs[index] if index < len(self.inputs) else None
        return value.axis if value is not None and value.is_rows else None

    def only(self, *indices: int) -> None:
        """Raise Undecided if other inputs than these depend on the rows."""
        for index, value in enumerate(self.inputs):
            if value is not None and value.is_rows and index not in indices:
                self.undecided("takes a parameter from the rows")

    def give(self, shape: Sequence[Dim], axis: int | None) -> Value:
        """An output: of rows along `axis`, or without rows if that is None."""
        if axis is None:
            return same(shape)
        try:
            return of_rows(shape, axis)
        except Undecided as error:
            self.undecided(str(error))

    def free(self) -> Size:
        """A size that is not known here, and does not depend on the batch."""
        return Size(1, 0, (f"{self.node.name}:{next(_names)}",))

    def broadcast(self, values: Sequence[Value]) -> Value:
        """What element by element gives, sizes aligned at the end."""
        shapes = [value.shape for value in values if value.shape is not None]
        if len(shapes) < len(values):
            if not any(value.is_rows for value in values):
                return same()
            self.undecided("takes a tensor of unknown rank")
        rank = max(map(len, shapes))
        axes = {value.axis + rank - len(value.shape or ()) for value in values if value.is_rows}
        if len(axes) > 1:
            self.mixed("puts every row beside every other one")
        axis = next(iter(axes), None)
        sizes: list[Dim] = [1] * rank
        for value, shape in zip(values, shapes, strict=True):
            for place, size in enumerate(shape, rank - len(shape)):
                if place == axis and not value.is_rows and size != 1:
                    self.undecided(CONSTANT_BY_PLACE)
                sizes[place] = _wider(sizes[place], size)
        return self.give(sizes, axis)


def _wider(first: Dim, second: Dim) -> Dim:
    """The size that two sizes give, one of which may be 1."""
    if first == 1 or first == second:
        return second
    if second == 1:
        return first
    for size in (first, second):
        if isinstance(size, int):
            return size
    return None if first is None or second is None else first


Function = Callable[[Call], Value] | Callable[[Call], list[Value]]
_F = TypeVar("_F", bound=Function)


@dataclass(frozen=True, slots=True)
class Rule:
    """What an operator does with rows.

    Attributes:
        function: Gives its output, or as many outputs as it has.
        parameters: Inputs that may depend on N, because they are sizes.
    """

    function: Function
    parameters: frozenset[int] = field(default_factory=frozenset)


RULES: Final[dict[tuple[str, str], Rule]] = {}
"""By domain and operator."""


def rule(*operators: str, domain: str = "", parameters: Sequence[int] = ()) -> Callable[[_F], _F]:
    """Enter a function as the rule of operators; it raises Mixed or Undecided where rows do not stay apart."""

    def enter(function: _F) -> _F:
        for operator in operators:
            RULES[domain, operator] = Rule(function, frozenset(parameters))
        return function

    return enter
