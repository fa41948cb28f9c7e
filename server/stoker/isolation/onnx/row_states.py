"""The state of a tensor during the analysis of a graph: how it depends on the rows of the batch, and its shape.

Sizes are products of a number, of N (the rows of the batch) and of free sizes, so that a Reshape can be followed
through `[N, S, 768] -> [N·S, 768]` without a number for N or S.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, Literal, NoReturn, TypeVar

from stoker.isolation.onnx.graph import Attribute, Node


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


# Reasons that several rules give for mixed or undecided rows, worded in one place.


BY_PLACE: Final = "treats rows by their place in the batch"
ANOTHER_AXIS: Final = "takes its rows along another axis than the first"
CONSTANT_BY_PLACE: Final = "takes a constant with something for each place in the batch"
ALIGNED: Final = "is of a version whose sizes are aligned by an attribute"
SCALE_OF_ALL: Final = "takes its scale from all rows of the batch"
UNKNOWN_AXIS: Final = "makes an axis of which it is not known how it holds the rows"
MEAN_OF_ALL: Final = "takes mean and variance from all rows of the batch"


MICROSOFT: Final = "com.microsoft"
ML: Final = "ai.onnx.ml"
_names = count()


@dataclass(frozen=True, slots=True)
class Call:
    """A node applied to inputs of known state.

    Attributes:
        inputs: The states of its inputs; None for omitted ones. None of them is `lost`.
    """

    node: Node
    inputs: Sequence[Value | None]
    opset: int
    attributes: Mapping[str, Attribute]

    def mixed(self, what: str) -> NoReturn:
        """Raise Mixed with this node as the subject: it mixes rows."""
        raise Mixed(f"{self.node} {what}")

    def undecided(self, what: str) -> NoReturn:
        """Raise Undecided with this node as the subject: whether it mixes rows is not known."""
        raise Undecided(f"{self.node} {what}")

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

    def numbers(self, index: int) -> tuple[int, ...]:
        """The elements of an input; raises Undecided unless they are constant integers."""
        content = self.content(index)
        if any(number is None or isinstance(number, Size) or number != int(number) for number in content):
            self.undecided("takes a parameter that is computed")
        return tuple(int(number) for number in content if isinstance(number, int | float))

    def list_of(self, name: str) -> tuple[int, ...] | None:
        """A list that is an attribute in older opsets, and the second input in newer ones; None if not given."""
        return self.numbers(1) if self.has(1) else self.integers(name)

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
                sizes[place] = _wider(sizes[place], size)
        return self.give(sizes, axis)


def _wider(first: Dim, second: Dim) -> Dim:
    """The size that results from broadcasting two sizes."""
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
    """How an operator treats rows.

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
