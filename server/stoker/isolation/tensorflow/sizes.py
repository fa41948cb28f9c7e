"""Integers in a TensorFlow graph that stand for sizes, computed with a symbol for the number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from stoker.isolation.tensorflow.row_states import Listed, Mixed, Plain, Rows, Size, State, Unknown, node_of

SHAPES: Final = frozenset({"Shape", "ShapeN", "Size", "Rank"})
"""The operators that `shape_of` handles."""


# Axes, permutations and shapes are not longer.
_MAX_ELEMENTS: Final = 256


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
    free = Size.VARYING if isinstance(state, Plain) and state.varies else Size.FIXED
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
    return Size.FIXED if all(size is Size.FIXED for size in symbols) else Size.VARYING


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
