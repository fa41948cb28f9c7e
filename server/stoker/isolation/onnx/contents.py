"""Small integers that a graph computes from shapes, evaluated with symbols for N and free sizes.

They are arrays of objects: numbers, sizes, and None for unknown ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Final

import numpy as np

from stoker.isolation.onnx.graph import Tensor
from stoker.isolation.onnx.operator_rules import Call
from stoker.isolation.onnx.row_states import Undecided, Value, same, sized
from stoker.isolation.onnx.sizes import Dim, Size, depends_on_rows, product, quotient

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
    except (Undecided, IndexError, ZeroDivisionError, OverflowError, TypeError, ValueError):
        return None
    if found is None or found.size > _MOST:
        return None
    content = tuple(found.flat)
    by_size = any(map(depends_on_rows, content)) or (
        None in content and any(value is not None and value.kind != "same" for value in call.inputs)
    )
    return (sized if by_size else same)(found.shape, content)


def _array(numbers: Iterable[Number], shape: tuple[int, ...] = (-1,)) -> np.ndarray:
    listed = list(numbers)
    array = np.empty(len(listed), object)
    array[:] = listed
    return array.reshape(shape)


def _input(call: Call, index: int) -> np.ndarray:
    return _array(call.content(index), call.shape(index))  # type: ignore[arg-type]  # a symbol raises TypeError


def _shape(call: Call) -> np.ndarray:
    shape = call.shape(0)
    return _array(shape[call.integer("start", 0) : call.integer("end", len(shape))])


def _count(call: Call) -> np.ndarray:
    return _array([product(call.shape(0))], ())


def _constant(call: Call) -> np.ndarray | None:
    value = next(iter(call.attributes.values()))
    if isinstance(value, Tensor):
        return None if value.content is None else _array(value.content, value.shape)
    if isinstance(value, int | float):
        return _array([value], ())
    if not isinstance(value, tuple):
        return None
    numbers = [number for number in value if not isinstance(number, bytes)]
    return _array(numbers) if len(numbers) == len(value) else None


def _unchanged(call: Call) -> np.ndarray:
    return _input(call, 0)


def _elementwise(operation: Callable[..., Number], inputs: int) -> Callable[[Call], np.ndarray | None]:
    """Return the function of an operator that computes with each element, or with pairs, as numpy broadcasts."""
    apply = np.frompyfunc(operation, inputs, 1)

    def function(call: Call) -> np.ndarray | None:
        arrays = [_input(call, index) for index in range(len(call.inputs))]
        if np.broadcast(*arrays).size > _MOST:
            return None
        result = reduce(apply, arrays) if inputs == 2 else apply(*arrays)
        # Of arrays without axes numpy returns the object itself.
        return result if isinstance(result, np.ndarray) else _array([result], ())

    return function


def _cast(call: Call) -> np.ndarray | None:
    change = _CASTS.get(call.integer("to", 0))
    return None if change is None else _array(map(change, call.content(0)), _input(call, 0).shape)


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


def _gather(call: Call) -> np.ndarray:
    places = np.reshape(call.numbers(1), _input(call, 1).shape).astype(int)
    taken = np.take(_input(call, 0), places, call.integer("axis", 0))
    return taken if places.ndim or isinstance(taken, np.ndarray) else _array([taken], ())


def _slice(call: Call) -> np.ndarray:
    data = _input(call, 0)
    parts = [slice(None)] * data.ndim
    for axis, start, end, step in call.slices():
        parts[axis] = slice(start, end, step)
    return data[tuple(parts)]


def _concat(call: Call) -> np.ndarray:
    return np.concatenate([_input(call, index) for index in range(len(call.inputs))], call.integer("axis", 1))


def _reshape(call: Call) -> np.ndarray:
    data, sizes = _input(call, 0), call.list_of("shape") or ()
    if not call.integer("allowzero", 0):
        sizes = tuple(size or data.shape[axis] for axis, size in enumerate(sizes))
    return data.reshape(sizes)


def _squeeze(call: Call) -> np.ndarray:
    return np.squeeze(_input(call, 0), call.list_of("axes"))


def _unsqueeze(call: Call) -> np.ndarray:
    return np.expand_dims(_input(call, 0), call.list_of("axes") or ())


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


def _not(number: Number) -> Number:
    return int(not number) if isinstance(number, int | float) else None


def _where(truth: Number, yes: Number, no: Number) -> Number:
    return None if truth is None or isinstance(truth, Size) else (yes if truth else no)


def _range(call: Call) -> np.ndarray | None:
    counted = range(*(call.numbers(index)[0] for index in range(3)))
    return _array(counted) if len(counted) <= _MOST else None


def _product_of_all(call: Call) -> np.ndarray | None:
    data, axes = _input(call, 0), call.list_of("axes")
    if data.ndim != 1 or axes not in {None, (0,), (-1,)} or call.integer("noop_with_empty_axes", 0):
        return None
    sizes = list(map(_as_dim, data))
    if any(isinstance(size, int) and size < 0 for size in sizes):
        return None
    return _array([product(sizes)], (1,) if call.integer("keepdims", 1) else ())


def _constant_of_shape(call: Call) -> np.ndarray | None:
    value = call.attributes.get("value", Tensor("", (1,), (0,)))
    if not isinstance(value, Tensor) or value.content is None:
        return None
    return np.broadcast_to(_array(value.content[:1]), call.numbers(0))


def _expand(call: Call) -> np.ndarray:
    data = _input(call, 0)
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, call.numbers(1)))


_FUNCTIONS: Final[dict[str, Callable[[Call], np.ndarray | None]]] = {
    "Shape": _shape,
    "Size": _count,
    "Constant": _constant,
    "Identity": _unchanged,
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Add": _elementwise(_add, 2),
    "Sub": _elementwise(_subtract, 2),
    "Mul": _elementwise(_multiply, 2),
    "Div": _elementwise(_divide, 2),
    "Equal": _elementwise(_equal, 2),
    "Min": _elementwise(_both_numbers(min), 2),
    "Max": _elementwise(_both_numbers(max), 2),
    "Greater": _elementwise(_both_numbers(lambda first, second: int(first > second)), 2),
    "Less": _elementwise(_both_numbers(lambda first, second: int(first < second)), 2),
    "Not": _elementwise(_not, 1),
    "Where": _elementwise(_where, 3),
    "Range": _range,
    "ReduceProd": _product_of_all,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
}
