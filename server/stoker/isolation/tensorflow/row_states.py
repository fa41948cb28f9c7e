"""The states of tensors while the batch axis is followed through a TensorFlow graph, and integers that are sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final


class Size(Enum):
    """A symbolic size."""

    ROWS = "the number of rows in the batch"
    SOME = "unknown, and the same whatever else is in the batch"
    VARYING = "unknown, and another one for another number of rows"


@dataclass(frozen=True, slots=True)
class Plain:
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


@dataclass(frozen=True, slots=True)
class Rows:
    """One axis is the batch axis; the elements at a row's position depend on that row alone, whatever its position.

    Attributes:
        exact: Whether it has one index for each row; else each row has several adjacent ones, equally many.
    """

    axis: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of tensors, which is not one tensor for each row.

    Attributes:
        item: The common state of its tensors; None for an empty list.
    """

    item: Plain | Rows | None = None


@dataclass(frozen=True, slots=True)
class Mixed:
    """A tensor that depends on several rows at once.

    Attributes:
        node: The operator that joined them, by type and name.
    """

    node: str


@dataclass(frozen=True, slots=True)
class Unknown:
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


# Integers in a TensorFlow graph that stand for sizes, computed with a symbol for the number of rows.


SHAPES: Final = frozenset({"Shape", "ShapeN", "Size", "Rank"})
"""The operators that `shape_of` handles."""

# Axes, permutations and shapes are not longer.
_MAX_ELEMENTS: Final = 256


def node_of(op: Any) -> str:
    """The name of an operator in messages: its type and its name."""
    return f"{op.type} {op.name!r}"


def constant(op: Any) -> Plain:
    """The value of a `Const` that holds few integers or booleans."""
    import tensorflow as tf

    (output,) = op.outputs
    elements = output.shape.num_elements()
    if not (output.dtype.is_integer or output.dtype.is_bool) or elements is None or elements > _MAX_ELEMENTS:
        return Plain()
    return Plain.of(_tuples(tf.make_ndarray(op.get_attr("value")).tolist()))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def shape_of(op: Any, states: Sequence[State]) -> State | list[State]:
    """The state of `Shape`, `ShapeN`, `Size` and `Rank`."""
    sizes = [_sizes(op, tensor, state) for tensor, state in zip(op.inputs, states, strict=True)]
    if op.type in ("Shape", "ShapeN"):
        return sizes
    (size,) = sizes
    if not isinstance(size, Plain) or size.value is None:
        return size
    if op.type == "Rank":
        return Plain.of(len(size.value))
    return Plain.of(_product(size.value))


def _sizes(op: Any, tensor: Any, state: State) -> State:
    if isinstance(state, Mixed | Unknown | Listed):
        # Its length may depend on the contents of rows.
        if tensor.shape.is_fully_defined():
            return Plain.of(tuple(tensor.shape.as_list()))
        return state if isinstance(state, Unknown) else Unknown(node_of(op))
    if tensor.shape.rank is None:
        return Plain(None, varies=True)
    free = Size.VARYING if isinstance(state, Plain) and state.varies else Size.SOME
    sizes: list[Any] = [free if size is None else size for size in tensor.shape.as_list()]
    if isinstance(state, Rows):
        sizes[state.axis] = Size.ROWS if state.exact else Size.VARYING
    return Plain.of(tuple(sizes))


def compute(op: Any, states: Sequence[Plain]) -> Plain:
    """The result of an operator on integers that do not depend on rows' contents."""
    rule = _RULES.get(op.type)
    known = (
        rule(op, states) if rule is not None and all(state.value is not None for state in states) else None
    )
    return Plain(None, any(state.varies for state in states)) if known is None else Plain.of(known)


def _product(sizes: Sequence[Any]) -> Any:
    numbers = [size for size in sizes if isinstance(size, int)]
    symbols = [size for size in sizes if isinstance(size, Size)]
    product = math.prod(numbers)
    if not symbols:
        return product
    if len(symbols) == 1 and product == 1:
        return symbols[0]
    return Size.SOME if all(size is Size.SOME for size in symbols) else Size.VARYING


def _arithmetic(op: Any, states: Sequence[Plain]) -> Any:
    one, other = (state.value for state in states)
    if not (isinstance(one, int) and isinstance(other, int)):
        if op.type == "Mul" and not isinstance(one, tuple) and not isinstance(other, tuple):
            return _product((one, other))
        return None
    match op.type:
        case "Mul":
            return one * other
        case "Sub":
            return one - other
        case _:
            return one + other


def _prod(op: Any, states: Sequence[Plain]) -> Any:
    values, axes = states[0].numbers, states[1].numbers
    if values is None or axes not in ((0,), (-1,)) or op.get_attr("keep_dims"):
        # A product over no axes is the scalar itself.
        return states[0].value if axes == () else None
    return _product(values)


def _gather(op: Any, states: Sequence[Plain]) -> Any:
    values, indices = states[0].value, states[1].value
    if not isinstance(values, tuple) or states[2].value != 0 or op.get_attr("batch_dims"):
        return None
    if isinstance(indices, tuple):
        flat = all(isinstance(index, int) and -1 < index < len(values) for index in indices)
        return tuple(values[index] for index in indices) if flat else None
    return values[indices] if isinstance(indices, int) and -1 < indices < len(values) else None


def _strided_slice(op: Any, states: Sequence[Plain]) -> Any:
    values = states[0].value
    ends = [state.numbers for state in states[1:]]
    if not isinstance(values, tuple) or any(end is None or len(end) != 1 for end in ends):
        return None
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    begin, end, stride = (end[0] for end in ends if end is not None)
    if op.get_attr("shrink_axis_mask"):
        return values[begin] if isinstance(begin, int) and -len(values) <= begin < len(values) else None
    begin = None if op.get_attr("begin_mask") else begin
    end = None if op.get_attr("end_mask") else end
    if not all(place is None or isinstance(place, int) for place in (begin, end, stride)):
        return None
    return values[begin:end:stride]


def _concat(_: Any, states: Sequence[Plain]) -> Any:
    *parts, axis = states
    if axis.value not in (0, -1) or not all(isinstance(part.value, tuple) for part in parts):
        return None
    return tuple(item for part in parts for item in part.value)


def _pack(op: Any, states: Sequence[Plain]) -> Any:
    return tuple(state.value for state in states) if op.get_attr("axis") == 0 else None


def _expand(_: Any, states: Sequence[Plain]) -> Any:
    return (states[0].value,) if states[1].value == 0 else None


def _same(_: Any, states: Sequence[Plain]) -> Any:
    return states[0].value


def _cast(op: Any, states: Sequence[Plain]) -> Any:
    # A cast to float or boolean would change the number.
    return states[0].value if op.outputs[0].dtype.is_integer and op.inputs[0].dtype.is_integer else None


_RULES: Final[dict[str, Callable[[Any, Sequence[Plain]], Any]]] = {
    "Identity": _same,
    "Cast": _cast,
    "Add": _arithmetic,
    "AddV2": _arithmetic,
    "Mul": _arithmetic,
    "Sub": _arithmetic,
    "Prod": _prod,
    "GatherV2": _gather,
    "StridedSlice": _strided_slice,
    "ConcatV2": _concat,
    "Pack": _pack,
    "ExpandDims": _expand,
}
