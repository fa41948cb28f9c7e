"""Replaces the methods of libraries that run models, so that a receiver can make the calls of a thread."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np

from stoker.scripts.handle_calls import HandleCall

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
"""Module, class and method that run a model. Modules that the script has not imported are left alone."""

_threads: Final = threading.local()


class CallReceiver(Protocol):
    """Receives the calls that a thread makes to models."""

    def submit(self, call: HandleCall) -> Any:
        """Make the call; return its result or raise its error."""
        ...


def _forget_receiver() -> None:
    """Let a forked child call models itself: it has no receiver for its calls."""
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


class Interception:
    """Replaces the methods that run models by methods that hand calls to the receiver of their thread, if any."""

    def __init__(self) -> None:
        self._replaced: dict[tuple[str, str, str], tuple[type, Any]] = {}

    def refresh(self) -> None:
        """Replace the methods of the libraries that have been imported until now."""
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
