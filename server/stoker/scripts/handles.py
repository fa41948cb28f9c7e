"""Calls to models, as scripts make them: seen, and made for several requests at once.

While `Interception` is installed, calls that a thread makes inside `at_desk` go to its desk instead of to the
model: those of `onnxruntime.InferenceSession`, of Keras models, of the functions of a SavedModel and of TensorFlow 1
sessions. Calls of all other threads pass through.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol

import numpy as np

from stoker.scripts.merging import Unsplittable

__all__ = ["Desk", "HandleCall", "Interception", "at_desk", "like", "together"]

_FUNCTIONS: Final = "tensorflow.python.eager.polymorphic_function.concrete_function"
_RESTORED: Final = "tensorflow.python.saved_model.function_deserialization"
_INTERCEPTED: Final = (
    ("onnxruntime", "InferenceSession", "run"),
    ("keras", "Model", "__call__"),
    ("keras", "Model", "predict"),
    ("keras", "Model", "predict_on_batch"),
    ("tf_keras", "Model", "__call__"),
    ("tf_keras", "Model", "predict"),
    ("tf_keras", "Model", "predict_on_batch"),
    (_FUNCTIONS, "ConcreteFunction", "__call__"),
    (_RESTORED, "RestoredFunction", "__call__"),
    ("tensorflow.python.client.session", "BaseSession", "run"),
)
"""Module, class and method of what runs a model. A module that the script has not imported is left alone."""

_threads: Final = threading.local()


class Desk(Protocol):
    """Who takes the calls of a thread."""

    def take(self, call: HandleCall) -> Any:
        """Return what the call gives, or raise what it raises."""
        ...


def _leave_desk() -> None:
    """In a process that a script forks nobody sits at a desk: calls to models are its own."""
    _threads.desk = None


os.register_at_fork(after_in_child=_leave_desk)


@contextlib.contextmanager
def at_desk(desk: Desk) -> Iterator[None]:
    """Hand the calls that this thread makes to `desk`."""
    _threads.desk = desk
    try:
        yield
    finally:
        _threads.desk = None


@dataclass(slots=True, eq=False)
class HandleCall:
    """One call to a model.

    Attributes:
        handle: The model: a session, a Keras model, a function.
        name: What is called, for the operator.
        original: The method, unbound.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        arrays: The arguments with rows, numpy arrays or eager tensors, in the order in which they occur.
        kind: What calls that may be made together have in common, apart from the shapes of their rows; None if the
            call can only be made as it is.
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
        # A lock that its maker releases is the cheapest event.
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
        """How many rows its arrays have."""
        return int(self.arrays[0].shape[0])

    @property
    def row_shapes(self) -> Hashable:
        """Shape of one row of each array."""
        return tuple(tuple(array.shape[1:]) for array in self.arrays)

    def result(self) -> Any:
        """Wait until the call has been made, and return what it gave or raise what it raised."""
        with self._made:
            if self._error is not None:
                raise self._error
            return self._value

    def succeed(self, value: Any) -> None:
        """Give it its result."""
        self._value = value
        self._made.release()

    def fail(self, error: BaseException) -> None:
        """Let it raise."""
        self._error = error
        self._made.release()

    def make(self) -> Any:
        """Call the model."""
        return self.original(self.handle, *self.args, **self.kwargs)

    def on(self, arrays: Sequence[Any]) -> HandleCall:
        """The same call with other rows."""
        args, kwargs = _refill((self.args, self.kwargs), iter(arrays))
        return replace(self, args=args, kwargs=kwargs)


def together(calls: Sequence[HandleCall]) -> list[Any]:
    """Make several calls of one kind, with rows of equal shapes, as one.

    Returns:
        What each of them gives.

    Raises:
        Unsplittable: The model's answer has not one entry for each row.
        Exception: Whatever the model raises.
    """
    first = calls[0]
    joined = [_concatenated([call.arrays[place] for call in calls]) for place in range(len(first.arrays))]
    return _split_output(first.on(joined).make(), [call.rows for call in calls])


def like(array: Any, values: Sequence[Any] | np.ndarray) -> Any:
    """Return values as an array of the same library and dtype."""
    if _is_tensor(array):
        return sys.modules["tensorflow"].convert_to_tensor(values, array.dtype)
    return np.array(values, array.dtype)


class Interception:
    """Replaces the methods that run models by ones that ask whether the thread has a desk."""

    def __init__(self) -> None:
        self._replaced: dict[tuple[str, str, str], tuple[type, Any]] = {}

    def refresh(self) -> None:
        """Install it for the libraries that have been imported by now."""
        for place in _INTERCEPTED:
            module, class_name, method = place
            owner = getattr(sys.modules.get(module), class_name, None)
            if owner is None or place in self._replaced:
                continue
            self._replaced[place] = (owner, owner.__dict__.get(method))
            setattr(owner, method, _asking(getattr(owner, method), f"{class_name}.{method}"))

    def remove(self) -> None:
        """Put everything back as it was."""
        for (_, _, method), (owner, before) in self._replaced.items():
            if before is None:
                delattr(owner, method)
            else:
                setattr(owner, method, before)
        self._replaced.clear()


def _asking(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    is_session = name == "BaseSession.run"

    @functools.wraps(original)
    def call(handle: Any, *args: Any, **kwargs: Any) -> Any:
        desk: Desk | None = getattr(_threads, "desk", None)
        if desk is None:
            return original(handle, *args, **kwargs)
        if is_session:
            args, kwargs = _session_arguments(*args, **kwargs)
        return desk.take(HandleCall(handle, name, original, args, kwargs))

    return call


def _session_arguments(
    fetches: Any, feed_dict: dict[Any, Any] | None = None, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make arrays of the lists that a session may be fed with."""
    feeds = {
        key: np.asarray(value) if isinstance(value, list) else value
        for key, value in (feed_dict or {}).items()
    }
    return (fetches, feeds, *args), kwargs


class _Opaque(Exception):
    """An argument that nothing is known of."""


def _structure(value: Any, arrays: list[Any]) -> Hashable:
    """Describe arguments without their rows, and collect the arrays that hold those.

    Raises:
        _Opaque: There is something among them whose meaning for a batch is unknown.
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
    # Tensors, operations and variables of a graph: what is fetched, and what is fed.
    if type(value).__module__.startswith("tensorflow."):
        return ("graph", id(value))
    raise _Opaque


def _refill(value: Any, arrays: Iterator[Any]) -> Any:
    """The same arguments with other arrays."""
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
