"""Calls that scripts make to models, and several of them made as one call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from stoker.scripts.result_parts import Unsplittable


@dataclass(slots=True, eq=False)
class HandleCall:
    """One call to a model.

    Attributes:
        original: The method, unbound.
        arrays: The arguments with rows, numpy arrays or eager tensors, in the order in which they occur.
        kind: Equal for calls that may be made together if their rows have equal shapes; None if the call can only be
            made alone.
    """

    handle: Any
    name: str
    original: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arrays: list[Any] = field(init=False)
    kind: Hashable | None = field(init=False)
    _made: Any = field(init=False)
    _value: Any = field(init=False, default=None)
    _error: BaseException | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        # A lock that is released when the call has been made is the cheapest event.
        self._made = threading.Lock()
        self._made.acquire()
        self.arrays = []
        try:
            structure = _structure((self.args, self.kwargs), self.arrays)
        except _Opaque:
            self.kind = None
            return
        rows = {int(array.shape[0]) for array in self.arrays}
        alike = len(rows) == 1 and 0 not in rows
        self.kind = (id(self.handle), self.name, structure) if alike else None

    @property
    def rows(self) -> int:
        """The number of rows of its arrays."""
        return int(self.arrays[0].shape[0])

    @property
    def row_shapes(self) -> Hashable:
        """Shape of one row of each array."""
        return tuple(tuple(array.shape[1:]) for array in self.arrays)

    def result(self) -> Any:
        """Wait until the call has been made, and return its result or raise its error."""
        with self._made:
            if self._error is not None:
                raise self._error
            return self._value

    def succeed(self, value: Any) -> None:
        """Set the result of the call."""
        self._value = value
        self._made.release()

    def fail(self, error: BaseException) -> None:
        """Let the call raise an error."""
        self._error = error
        self._made.release()

    def make(self) -> Any:
        """Call the model."""
        return self.original(self.handle, *self.args, **self.kwargs)

    def on(self, arrays: Sequence[Any]) -> HandleCall:
        """Return the same call with other rows."""
        args, kwargs = _refill((self.args, self.kwargs), iter(arrays))
        return replace(self, args=args, kwargs=kwargs)


def call_together(calls: Sequence[HandleCall]) -> list[Any]:
    """Make several calls of one kind, with rows of equal shapes, as one.

    Returns:
        The result of each call.

    Raises:
        Unsplittable: The model's answer has not one entry for each row.
        Exception: The model raised it.
    """
    first = calls[0]
    joined = [_concatenated([call.arrays[place] for call in calls]) for place in range(len(first.arrays))]
    return _split_output(first.on(joined).make(), [call.rows for call in calls])


def convert_like(array: Any, values: Sequence[Any] | np.ndarray) -> Any:
    """Return values as an array of the same library and dtype."""
    if _is_tensor(array):
        return sys.modules["tensorflow"].convert_to_tensor(values, array.dtype)
    return np.array(values, array.dtype)


class _Opaque(Exception):
    """An argument of an unknown type."""


def _structure(value: Any, arrays: list[Any]) -> Hashable:
    """Describe arguments without their rows, and collect the arrays of rows.

    Raises:
        _Opaque: The meaning of an argument for a batch is unknown.
    """
    if _is_array(value):
        if value.ndim == 0:
            return ("single", value.dtype.name, np.asarray(value).tobytes())
        arrays.append(value)
        return ("rows", type(value).__name__, value.dtype.name, value.ndim)
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return (type(value).__name__, value)
        case list() | tuple():
            return (type(value).__name__, *(_structure(item, arrays) for item in value))
        case dict():
            return ("dict", *((_identity(key), _structure(item, arrays)) for key, item in value.items()))
        case _:
            return _identity(value)


def _identity(value: Any) -> Hashable:
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        return (value.dtype.name, value.tobytes())
    # Tensors, operations and variables of a graph name the outputs and inputs of a session.
    if type(value).__module__.startswith("tensorflow."):
        return ("graph", id(value))
    raise _Opaque


def _refill(value: Any, arrays: Iterator[Any]) -> Any:
    """Return the same arguments with other arrays."""
    if _is_array(value):
        return next(arrays) if value.ndim else value
    if isinstance(value, dict):
        return {key: _refill(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _like(value, [_refill(item, arrays) for item in value])
    return value


def _like(value: Any, items: Sequence[Any]) -> Any:
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    tensors = sys.modules.get("tensorflow.python.framework.ops")
    return tensors is not None and isinstance(value, tensors.EagerTensor)


def _concatenated(arrays: Sequence[Any]) -> Any:
    if _is_tensor(arrays[0]):
        return sys.modules["tensorflow"].concat(list(arrays), 0)
    return np.concatenate(arrays)


def _split_output(value: Any, counts: Sequence[int]) -> list[Any]:
    rows = sum(counts)
    if _is_array(value):
        if not value.ndim or value.shape[0] != rows:
            raise Unsplittable(f"the model answers with shape {list(value.shape)} for {rows} rows")
        if _is_tensor(value):
            return list(sys.modules["tensorflow"].split(value, list(counts)))
        return [value[start:stop] for start, stop in pairwise(accumulate(counts, initial=0))]
    if type(value) is dict:
        shares = [_split_output(item, counts) for item in value.values()]
        return [dict(zip(value, parts, strict=True)) for parts in zip(*shares, strict=True)]
    if type(value) is list and len(value) == rows and not any(map(_holds_array, value)):
        # ONNX classifiers made from scikit-learn answer with a list of one dict a row.
        return [value[start:stop] for start, stop in pairwise(accumulate(counts, initial=0))]
    if value and (type(value) in (list, tuple) or hasattr(value, "_fields")):
        shares = [_split_output(item, counts) for item in value]
        return [_like(value, parts) for parts in zip(*shares, strict=True)]
    raise Unsplittable(f"the model answers with {type(value).__name__}, which has no entry for each row")


def _holds_array(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_array, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_array, value))
    return _is_array(value)
