"""The rules of operators: each returns the states of the outputs of a call, and raises if rows may be mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final, NoReturn, TypeVar

from msgspec import Struct, field

from stoker.isolation.onnx.graph import Attribute, Node
from stoker.isolation.onnx.row_states import Mixed, Undecided, Value, of_rows, same
from stoker.isolation.onnx.sizes import Content, Dim, Shape, Size, wider

# Reasons of several rules.
BY_PLACE: Final = "treats rows by their place in the batch"
ANOTHER_AXIS: Final = "takes its rows along another axis than the first"
CONSTANT_BY_PLACE: Final = "takes a constant with an entry for each place in the batch"
ALIGNED: Final = "is of a version whose sizes are aligned by an attribute"
SCALE_OF_ALL: Final = "takes its scale from all rows of the batch"
MEAN_OF_ALL: Final = "takes mean and variance from all rows of the batch"

MICROSOFT: Final = "com.microsoft"
ML: Final = "ai.onnx.ml"
_names = count()


class Call(Struct, frozen=True):
    """A node applied to inputs of known state.

    Attributes:
        inputs: The states of its inputs; None for omitted ones. None of them is `lost`.
    """

    node: Node
    inputs: Sequence[Value | None]
    opset: int
    attributes: Mapping[str, Attribute]

    def mixed(self, fault: str) -> NoReturn:
        """Raise Mixed with this node as the subject: it mixes rows."""
        raise Mixed(f"{self.node} {fault}")

    def undecided(self, doubt: str) -> NoReturn:
        """Raise Undecided with this node as the subject: whether it mixes rows is not known."""
        raise Undecided(f"{self.node} {doubt}")

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """A required input; raises Undecided if it is omitted."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            self.undecided("lacks an input")
        return value

    def shape(self, index: int) -> Shape:
        """The shape of an input; raises Undecided if its rank is unknown."""
        shape = self.value(index).shape
        if shape is None:
            self.undecided("takes a tensor of unknown rank")
        return shape

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else self.undecided(f"has no number as {name}")

    def text(self, name: str, default: str = "") -> str:
        """A string attribute."""
        value = self.attributes.get(name, default.encode())
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list-of-integers attribute; None if it is not given."""
        value = self.attributes.get(name)
        if value is None and name not in self.attributes:
            return None
        if isinstance(value, tuple) and all(isinstance(number, int) for number in value):
            return tuple(int(number) for number in value)
        return self.undecided(f"has no numbers as {name}")

    def content(self, index: int) -> Content:
        """The elements of an input; raises Undecided unless their number is known."""
        content = self.value(index).content
        if content is None:
            self.undecided("takes a parameter that is computed")
        return content

    def sizes(self, index: int) -> list[Dim]:
        """The elements of an input as sizes; raises Undecided unless their number is known."""
        return [int(size) if isinstance(size, float) else size for size in self.content(index)]

    def numbers(self, index: int) -> tuple[int, ...]:
        """The elements of an input; raises Undecided unless they are constant integers."""
        content = self.content(index)
        if any(number is None or isinstance(number, Size) or number != int(number) for number in content):
            self.undecided("takes a parameter that is computed")
        return tuple(int(number) for number in content if isinstance(number, int | float))

    def list_of(self, name: str) -> tuple[int, ...] | None:
        """A list that is an attribute in older opsets, and the second input in newer ones; None if not given."""
        return self.numbers(1) if self.has(1) else self.integers(name)

    def slices(self) -> list[tuple[int, int, float | Size | None, int]]:
        """Axis, start, end and step of each slice of the first input: attributes in older opsets, else inputs."""
        if self.opset < 10:
            starts, axes, steps = self.integers("starts") or (), self.integers("axes"), None
            ends: Content = self.integers("ends") or ()
        else:
            starts, ends = self.numbers(1), self.content(2)
            axes, steps = (self.numbers(index) if self.has(index) else None for index in (3, 4))
        rank = len(self.shape(0))
        return [
            (self.from_front(axes[place] if axes else place, rank), start, end, steps[place] if steps else 1)
            for place, (start, end) in enumerate(zip(starts, ends, strict=False))
        ]

    def axis(self, default: int) -> int:
        """The attribute that names an axis of the first input, as a non-negative axis."""
        return self.from_front(self.integer("axis", default), len(self.shape(0)))

    def from_front(self, axis: int, rank: int) -> int:
        """An axis as a non-negative number; raises Undecided if there is no such axis."""
        if not -rank <= axis <= rank:
            self.undecided(f"has no axis {axis}")
        return axis + rank if axis < 0 else axis

    def batch_axis(self, index: int) -> int | None:
        """The batch axis of an input; None if it does not depend on the rows."""
        value = self.inputs[index] if index < len(self.inputs) else None
        return value.axis if value is not None and value.is_rows else None

    def only(self, *indices: int) -> None:
        """Raise Undecided if inputs other than these depend on the rows."""
        for index, value in enumerate(self.inputs):
            if value is not None and value.is_rows and index not in indices:
                self.undecided("takes a parameter from the rows")

    def check_not_over(self, *axes: int) -> None:
        """Raise Mixed if the first input has its rows along one of the axes over which the operator goes."""
        if self.batch_axis(0) in axes:
            self.mixed("goes over the rows of the batch")

    def take_axes(self, axes: Sequence[int]) -> Value:
        """An output with these axes of the first input, in this order."""
        shape, batch = self.shape(0), self.batch_axis(0)
        return self.give([shape[axis] for axis in axes], None if batch is None else axes.index(batch))

    def give(self, shape: Sequence[Dim], axis: int | None) -> Value:
        """An output with rows along `axis`, or independent of the rows if `axis` is None."""
        if axis is None:
            return same(shape)
        try:
            return of_rows(shape, axis)
        except Undecided as error:
            self.undecided(str(error))

    def free(self) -> Size:
        """A new symbolic size that is unknown but does not depend on the batch."""
        return Size(1, 0, (f"{self.node.name}:{next(_names)}",))

    def broadcast(self, values: Sequence[Value]) -> Value:
        """The output of an elementwise operator with numpy's broadcasting."""
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
                sizes[place] = wider(sizes[place], size)
        return self.give(sizes, axis)


Function = Callable[[Call], Value] | Callable[[Call], list[Value]]
_F = TypeVar("_F", bound=Function)


class Rule(Struct, frozen=True):
    """The treatment of rows by an operator.

    Attributes:
        function: Returns the state of its output, or of each of its outputs.
        parameters: Indices of inputs that may depend on N because they are sizes.
    """

    function: Function
    parameters: frozenset[int] = field(default_factory=frozenset)


RULES: Final[dict[tuple[str, str], Rule]] = {}
"""Rules by domain and operator."""


def rule(*operators: str, domain: str = "", parameters: Sequence[int] = ()) -> Callable[[_F], _F]:
    """Register a function as the rule of operators; it raises Mixed or Undecided unless rows stay apart."""

    def enter(function: _F) -> _F:
        for operator in operators:
            RULES[domain, operator] = Rule(function, frozenset(parameters))
        return function

    return enter
