"""The handles by which scripts call models, and requests whose calls to one model are gathered to a batch."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol

import numpy as np

from stoker.scripts.exits import contain
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging import Unsplittable
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

logger = logging.getLogger(__name__)


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


class CallReceiver(Protocol):
    """Receives the calls that a thread makes to models."""

    def submit(self, call: HandleCall) -> Any:
        """Make the call; return its result or raise its error."""
        ...


def _forget_receiver() -> None:
    """Let a forked child call models itself: nobody there receives its calls."""
    _threads.receiver = None


os.register_at_fork(after_in_child=_forget_receiver)


@contextlib.contextmanager
def redirect_calls(receiver: CallReceiver) -> Iterator[None]:
    """Hand the calls that this thread makes to `receiver`."""
    _threads.receiver = receiver
    try:
        yield
    finally:
        _threads.receiver = None


@dataclass(slots=True, eq=False)
class HandleCall:
    """One call to a model.

    Attributes:
        original: The method, unbound.
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
        What each of them gives.

    Raises:
        Unsplittable: The model's answer has not one entry for each row.
        Exception: Whatever the model raises.
    """
    first = calls[0]
    joined = [_concatenated([call.arrays[place] for call in calls]) for place in range(len(first.arrays))]
    return _split_output(first.on(joined).make(), [call.rows for call in calls])


def convert_like(array: Any, values: Sequence[Any] | np.ndarray) -> Any:
    """Return values as an array of the same library and dtype."""
    if _is_tensor(array):
        return sys.modules["tensorflow"].convert_to_tensor(values, array.dtype)
    return np.array(values, array.dtype)


class Interception:
    """Replaces the methods that run models by ones that hand the call to the receiver of the thread, if any."""

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
            setattr(owner, method, _intercepted(getattr(owner, method), f"{class_name}.{method}"))

    def remove(self) -> None:
        """Restore the original methods."""
        for (_, _, method), (owner, before) in self._replaced.items():
            if before is None:
                delattr(owner, method)
            else:
                setattr(owner, method, before)
        self._replaced.clear()


def _intercepted(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    is_session = name == "BaseSession.run"

    @functools.wraps(original)
    def call(handle: Any, *args: Any, **kwargs: Any) -> Any:
        receiver: CallReceiver | None = getattr(_threads, "receiver", None)
        if receiver is None:
            return original(handle, *args, **kwargs)
        if is_session:
            args, kwargs = _session_arguments(*args, **kwargs)
        return receiver.submit(HandleCall(handle, name, original, args, kwargs))

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
    """An argument of an unknown type."""


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


# Requests on threads of their own, and the calls that they make to the model gathered into batches.


MAX_THREADS: Final = 64
"""Requests that run at the same time. Each has a thread, and Python runs one of them at a time."""
_WAIT_S: Final = 0.002
"""Batches fill by themselves while the model computes: a longer wait only let it stand idle where it was measured."""


class GatheredCalls:
    """Calls a script for several requests at once. Belongs to the thread that makes it."""

    def __init__(
        self, calls: ScriptCalls, *, max_rows: int, max_threads: int = MAX_THREADS, wait_s: float = _WAIT_S
    ) -> None:
        """Gather calls at models, for at most so many requests and rows.

        Args:
            wait_s: How long a call waits for those of threads that are busy elsewhere.
        """
        self.wait_s = wait_s
        self.largest_batch = 0
        """Most calls that have been made as one."""
        self._calls = calls
        self._max_rows = max_rows
        self._max_threads = max_threads
        self._interception = Interception()
        self._queue = _CallQueue(max_rows, self._may_gather)
        self._threads: ThreadPoolExecutor | None = None
        self._kinds: dict[Hashable, HandleCall] | None = None

    @property
    def gathered(self) -> list[HandleCall]:
        """Examples of what is gathered."""
        return list((self._kinds or {}).values())

    def gather_only(self, examples: Sequence[HandleCall]) -> None:
        """Gather calls of the kinds of these examples only; make all others one by one."""
        # A kind names its model by its address: the examples keep their models alive.
        self._kinds = {example.kind: example for example in examples}

    def answers(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests, as many at a time as there may be threads. Never raises what the script raises."""
        if len(requests) == 1:
            return [self._calls.answer(requests[0])]
        answers: list[ScriptAnswer] = []
        for start in range(0, len(requests), self._max_threads):
            answers += self._run(requests[start : start + self._max_threads], self._make)
        return answers

    def record_calls(self, request: ScriptRequest) -> tuple[ScriptAnswer, list[HandleCall]]:
        """Score one request, each call made as it comes; return those that could have been gathered, too."""
        seen: list[HandleCall] = []

        def make(calls: Sequence[HandleCall]) -> None:
            for call in calls:
                if call.kind is not None:
                    seen.append(call)
                _make_alone(call)

        (answer,) = self._run([request], make)
        return answer, seen

    def close(self) -> None:
        """End the threads and leave the libraries as they were."""
        self._interception.remove()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _run(
        self, requests: Sequence[ScriptRequest], make: Callable[[Sequence[HandleCall]], None]
    ) -> list[ScriptAnswer]:
        # What a script imports in its first requests counts from the next ones on.
        self._interception.refresh()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self._max_threads, thread_name_prefix="request", initializer=_share_graph()
            )
        self._queue.expect(len(requests))
        answers = [
            self._threads.submit(contextvars.copy_context().run, self._answer, request)
            for request in requests
        ]
        while calls := self._queue.collect(self.wait_s):
            make(calls)
        return [answer.result() for answer in answers]

    def _answer(self, request: ScriptRequest) -> ScriptAnswer:
        try:
            with redirect_calls(self._queue):
                return self._calls.answer(request)
        finally:
            self._queue.finish_request()

    def _make(self, calls: Sequence[HandleCall]) -> None:
        alike: dict[Hashable, list[HandleCall]] = {}
        for call in calls:
            if self._may_gather(call):
                alike.setdefault((call.kind, call.row_shapes), []).append(call)
            else:
                _make_alone(call)
        for company in alike.values():
            self._make_batches(company)

    def _may_gather(self, call: HandleCall) -> bool:
        return call.kind is not None and (self._kinds is None or call.kind in self._kinds)

    def _make_batches(self, calls: Sequence[HandleCall]) -> None:
        batch: list[HandleCall] = []
        rows = 0
        for call in calls:
            if batch and rows + call.rows > self._max_rows:
                self._make_together(batch)
                batch, rows = [], 0
            batch.append(call)
            rows += call.rows
        self._make_together(batch)

    def _make_together(self, calls: Sequence[HandleCall]) -> None:
        if len(calls) == 1:
            _make_alone(calls[0])
            return
        try:
            results = contain(lambda: call_together(calls), "a gathered call")
        except Exception as error:  # noqa: BLE001  # whoever is to blame is found below
            logger.debug("a gathered call for %d requests failed: %r", len(calls), error)
        else:
            self.largest_batch = max(self.largest_batch, len(calls))
            for call, result in zip(calls, results, strict=True):
                call.succeed(result)
            return
        middle = len(calls) // 2
        self._make_together(calls[:middle])
        self._make_together(calls[middle:])


class _CallQueue:
    """A queue of calls to models; the threads of requests wait until their calls are made.

    The model's thread is woken when there is something to do, and once before, when the first call comes, to look
    after the time. Waking it for each call would cost more than many a call.
    """

    def __init__(self, max_rows: int, may_gather: Callable[[HandleCall], bool]) -> None:
        self._max_rows = max_rows
        self._may_gather = may_gather
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._waiting: list[HandleCall] = []
        self._rows = 0
        self._open = 0

    def expect(self, requests: int) -> None:
        """Set the number of requests under way."""
        self._open = requests

    def submit(self, call: HandleCall) -> Any:
        """Wait until the call has been made."""
        with self._lock:
            self._waiting.append(call)
            # One that stays alone has nobody to wait for.
            self._rows += call.rows if self._may_gather(call) else self._max_rows
            if len(self._waiting) == 1 or self._is_complete():
                self._news.set()
        return call.result()

    def finish_request(self) -> None:
        """Note that a request has its answer."""
        with self._lock:
            self._open -= 1
            if self._is_complete():
                self._news.set()

    def collect(self, wait_s: float) -> list[HandleCall]:
        """Wait for calls, the first of them at most `wait_s`; none if every request has its answer."""
        due_s: float | None = None
        while True:
            with self._lock:
                self._news.clear()
                now_s = time.monotonic()
                if due_s is None and self._waiting:
                    due_s = now_s + wait_s
                if self._is_complete() or (due_s is not None and now_s >= due_s):
                    calls, self._waiting, self._rows = self._waiting, [], 0
                    return calls
            self._news.wait(None if due_s is None else due_s - now_s)

    def _is_complete(self) -> bool:
        """Whether waiting for more calls is of no use."""
        return len(self._waiting) >= self._open or self._rows >= self._max_rows


def _make_alone(call: HandleCall) -> None:
    try:
        call.succeed(call.make())
    except BaseException as error:  # noqa: BLE001  # raised again in the thread that made the call
        call.fail(error)


def _share_graph() -> Callable[[], None] | None:
    """Let other threads see the default graph and session of TensorFlow 1 that this thread has."""
    context = sys.modules.get("tensorflow.python.eager.context")
    ops = sys.modules.get("tensorflow.python.framework.ops")
    if context is None or ops is None or context.executing_eagerly():
        return None
    graph, session = ops.get_default_graph(), ops.get_default_session()

    def enter() -> None:
        # They would be left again as soon as nothing held them.
        entered: list[AbstractContextManager[Any]] = [graph.as_default()]
        if session is not None:
            entered.append(session.as_default())
        for manager in entered:
            manager.__enter__()
        _held.managers = entered

    return enter


_held: Final = threading.local()
