"""Small integers that a graph computes from shapes, evaluated with symbols for N and free sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from stoker.isolation.onnx.graph import Tensor
from stoker.isolation.onnx.operator_rules import Call
from stoker.isolation.onnx.row_states import Undecided, Value, same, sized
from stoker.isolation.onnx.sizes import (
    Content,
    Dim,
    Shape,
    Size,
    depends_on_rows,
    elements,
    product,
    quotient,
)

_MOST: Final = 512
Number = float | Size | None


def computed(call: Call) -> Value | None:
    """Return the output of a node with known elements, or a known number of them; None if that is not known."""
    if call.node.domain or (function := _FUNCTIONS.get(call.node.operator)) is None:
        return None
    if function not in {_shape, _count} and any(value is not None and value.is_rows for value in call.inputs):
        return None
    try:
        found = function(call)
    except (Undecided, IndexError, ZeroDivisionError, OverflowError, ValueError):
        return None
    if found is None or len(found[1]) > _MOST:
        return None
    shape, content = found
    by_size = any(map(depends_on_rows, content)) or (
        None in content and any(value is not None and value.kind != "same" for value in call.inputs)
    )
    return (sized if by_size else same)(shape, content)


Found = tuple[Shape, Content] | None


def _shape(call: Call) -> Found:
    shape = call.shape(0)
    sizes = shape[call.integer("start", 0) : call.integer("end", len(shape))]
    return (len(sizes),), sizes


def _count(call: Call) -> Found:
    return (), (product(call.shape(0)),)


def _constant(call: Call) -> Found:
    value = next(iter(call.attributes.values()))
    if isinstance(value, Tensor):
        return None if value.content is None else (value.shape, value.content)
    if isinstance(value, int | float):
        return (), (value,)
    if not isinstance(value, tuple):
        return None
    numbers = tuple(number for number in value if not isinstance(number, bytes))
    return ((len(value),), numbers) if len(numbers) == len(value) else None


def _unchanged(call: Call) -> Found:
    return call.shape(0), call.content(0)


def _cast(call: Call) -> Found:
    change = _CASTS.get(call.integer("to", 0))
    return None if change is None else (call.shape(0), tuple(map(change, call.content(0))))


def _as_truth(number: Number) -> Number:
    # Sizes are never 0 here.
    return 1 if isinstance(number, Size) else None if number is None else int(bool(number))


def _as_float(number: Number) -> Number:
    if isinstance(number, int | float):
        return float(number) if abs(number) <= _MOST_OF_FLOAT else None
    return number


def _as_integer(number: Number) -> Number:
    if isinstance(number, int | float):
        return int(number) if abs(number) <= _MOST_OF_INT32 else None
    return number


_MOST_OF_FLOAT: Final = 2**24
_MOST_OF_INT32: Final = 2**31 - 1
_CASTS: Final[dict[int, Callable[[Number], Number]]] = {
    1: _as_float,
    6: _as_integer,
    7: lambda number: int(number) if isinstance(number, int | float) else number,
    9: _as_truth,
    11: _as_float,
}
"""Conversions by ONNX data type; narrower types wrap round or lose precision, and are not evaluated."""


def _gather(call: Call) -> Found:
    data, places = call.content(0), call.numbers(1)
    if len(call.shape(0)) != 1 or call.integer("axis", 0) not in {0, -1}:
        return None
    return call.shape(1), tuple(data[place] for place in places)


def _slice(call: Call) -> Found:
    data = call.content(0)
    if len(call.shape(0)) != 1:
        return None
    if call.opset < 10:
        starts, ends, steps = call.integers("starts"), call.integers("ends"), None
    else:
        starts, ends = call.numbers(1), call.numbers(2)
        steps = call.numbers(4) if call.has(4) else None
    if starts is None or ends is None or len(starts) != 1:
        return None
    part = data[slice(starts[0], ends[0], steps[0] if steps else None)]
    return (len(part),), part


def _concat(call: Call) -> Found:
    parts = [call.content(index) for index in range(len(call.inputs))]
    if any(len(call.shape(index)) != 1 for index in range(len(parts))):
        return None
    whole = tuple(number for part in parts for number in part)
    return (len(whole),), whole


def _reshaped(call: Call) -> Found:
    """Squeeze, Unsqueeze and Reshape of vectors and scalars; the general rule computes the resulting shape."""
    content = call.content(0)
    if call.node.operator == "Squeeze":
        return ((), content) if len(content) == 1 and len(call.shape(0)) <= 1 else None
    if call.node.operator == "Unsqueeze":
        return ((1,), content) if call.shape(0) == () else None
    sizes = call.numbers(1)
    if len(sizes) == 1 and sizes[0] in {-1, len(content)}:
        return (len(content),), content
    return ((), content) if not sizes and len(content) == 1 else None


def _pairs(call: Call) -> tuple[Shape, list[tuple[Number, Number]]] | None:
    first, second = call.content(0), call.content(1)
    if len(call.inputs) != 2:
        return None
    if len(call.shape(0)) > 1 or len(call.shape(1)) > 1:
        return None
    count = max(len(first), len(second))
    if min(len(first), len(second)) not in {1, count}:
        return None
    shape: Shape = (count,) if len(call.shape(0)) + len(call.shape(1)) else ()
    first, second = (part * (count if len(part) == 1 else 1) for part in (first, second))
    return shape, list(zip(first, second, strict=True))


def _two(operation: Callable[[Number, Number], Number]) -> Callable[[Call], Found]:
    def function(call: Call) -> Found:
        pairs = _pairs(call)
        return None if pairs is None else (pairs[0], tuple(operation(*pair) for pair in pairs[1]))

    return function


def _add(first: Number, second: Number) -> Number:
    if first == 0:
        return second
    if second == 0:
        return first
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first + second
    return None


def _subtract(first: Number, second: Number) -> Number:
    if first is not None and first == second:
        return 0
    if isinstance(second, int | float):
        return _add(first, -second)
    return None


def _as_dim(number: Number) -> Dim:
    if isinstance(number, float):
        return int(number) if number == int(number) else None
    return number


def _multiply(first: Number, second: Number) -> Number:
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first * second
    sizes = _as_dim(first), _as_dim(second)
    if any(isinstance(size, int) and size < 0 for size in sizes):
        return None
    return product(sizes)


def _divide(first: Number, second: Number) -> Number:
    if isinstance(first, int | float) and isinstance(second, int | float):
        if isinstance(first, int) and isinstance(second, int):
            return int(first / second)
        return first / second
    divisor = _as_dim(second)
    if isinstance(divisor, int) and divisor <= 0:
        return None
    return quotient(_as_dim(first), divisor)


def _equal(first: Number, second: Number) -> Number:
    if isinstance(first, Size):
        first, second = second, first
    if isinstance(first, int | float) and isinstance(second, int | float):
        return int(first == second)
    if isinstance(first, int | float) and isinstance(second, Size):
        # A size is positive: it equals no negative number, and zero sizes do not occur.
        return 0 if first < 0 else None
    return 1 if first is not None and first == second else None


def _both_numbers(operation: Callable[[float, float], float]) -> Callable[[Number, Number], Number]:
    def function(first: Number, second: Number) -> Number:
        if isinstance(first, int | float) and isinstance(second, int | float):
            return operation(first, second)
        return None

    return function


def _not(call: Call) -> Found:
    return call.shape(0), tuple(
        int(not number) if isinstance(number, int | float) else None for number in call.content(0)
    )


def _where(call: Call) -> Found:
    parts = [call.content(index) for index in range(3)]
    if any(len(call.shape(index)) > 1 for index in range(3)):
        return None
    count = max(map(len, parts))
    if any(len(part) not in {1, count} for part in parts):
        return None
    condition, yes, no = (part * (count if len(part) == 1 else 1) for part in parts)
    chosen = tuple(
        None if truth is None or isinstance(truth, Size) else (one if truth else other)
        for truth, one, other in zip(condition, yes, no, strict=True)
    )
    return ((count,) if any(len(call.shape(index)) for index in range(3)) else ()), chosen


def _range(call: Call) -> Found:
    start, limit, delta = (call.numbers(index)[0] for index in range(3))
    if abs(limit - start) > _MOST * abs(delta):
        return None
    content = tuple(range(start, limit, delta))
    return (len(content),), content


def _product_of_all(call: Call) -> Found:
    axes = call.list_of("axes")
    if len(call.shape(0)) != 1 or axes not in {None, (0,), (-1,)} or call.integer("noop_with_empty_axes", 0):
        return None
    sizes = [_as_dim(number) for number in call.content(0)]
    if any(isinstance(size, int) and size < 0 for size in sizes):
        return None
    return ((1,) if call.integer("keepdims", 1) else ()), (product(sizes),)


def _constant_of_shape(call: Call) -> Found:
    value = call.attributes.get("value")
    number: Number = 0
    if isinstance(value, Tensor):
        if value.content is None:
            return None
        number = value.content[0]
    shape = call.numbers(0)
    return (shape, (number,) * math.prod(shape)) if math.prod(shape) <= _MOST else None


def _expand(call: Call) -> Found:
    shape = call.numbers(1)
    content = call.content(0)
    if len(content) != 1 or len(shape) > 1 or elements(call.shape(0)) != 1 or math.prod(shape) > _MOST:
        return None
    return shape, content * math.prod(shape)


_FUNCTIONS: Final[dict[str, Callable[[Call], Found]]] = {
    "Shape": _shape,
    "Size": _count,
    "Constant": _constant,
    "Identity": _unchanged,
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Reshape": _reshaped,
    "Add": _two(_add),
    "Sub": _two(_subtract),
    "Mul": _two(_multiply),
    "Div": _two(_divide),
    "Equal": _two(_equal),
    "Min": _two(_both_numbers(min)),
    "Max": _two(_both_numbers(max)),
    "Greater": _two(_both_numbers(lambda first, second: int(first > second))),
    "Less": _two(_both_numbers(lambda first, second: int(first < second))),
    "Not": _not,
    "Where": _where,
    "Range": _range,
    "ReduceProd": _product_of_all,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
}
