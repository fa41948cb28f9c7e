"""Captured graphs of ONNX Runtime: sessions whose inputs and outputs are bound to the memory of a pipeline's sets.

See decision 52.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import onnxruntime

from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.onnx.executions import bind_memory
from stoker.runtimes.onnx.sessions import raise_if_out_of_memory
from stoker.runtimes.pipeline import BatchSet

_GRAPH_ID: Final = "gpu_graph_id"
_DO_NOT_WAIT: Final = "disable_synchronize_execution_providers"

# Runs without an id have 0. An id is for one shape of one session, and is never used again.
_graph_ids = itertools.count(1)
# While one thread captures, CUDA forbids other threads of the process all calls that a capture cannot repeat.
_capturing = threading.Lock()


class GraphSessions(Protocol):
    """Opens the sessions whose graphs are captured.

    Attributes:
        shares_memory: Whether sizes use the same working memory, so that it is kept until all of them are closed.
    """

    shares_memory: bool

    def open(self, rows: int, stream: int) -> onnxruntime.InferenceSession:
        """Return the session for batches of a size; open it if it is not open.

        Args:
            stream: The stream of its computation, the same in all calls.

        Raises:
            OutOfMemory: The device has no memory for it.
            LoadFailed: ONNX Runtime cannot open it, or not all of its operators run on the GPU.
        """
        ...

    def close(self, rows: int) -> None:
        """Close a session that only this size uses."""
        ...


class SessionGraphs:
    """Graphs that ONNX Runtime captures, for the thread that runs them; see `Graphs`."""

    def __init__(self, sessions: GraphSessions) -> None:
        self.shares_memory = sessions.shares_memory
        self._sessions = sessions
        self._captured: dict[int, tuple[onnxruntime.InferenceSession, Sequence[int]]] = {}

    def open(self, size: int, stream: int) -> None:
        """See `Graphs`."""
        self._sessions.open(size, stream)

    def capture(self, size: int, sets: Sequence[BatchSet], stream: int) -> Sequence[Callable[[], None]]:
        """See `Graphs`."""
        session = self._sessions.open(size, stream)
        numbers = [next(_graph_ids) for _ in sets]
        self._captured[size] = session, numbers
        try:
            return [
                _capture_for(batch_set, session, size, number)
                for batch_set, number in zip(sets, numbers, strict=True)
            ]
        except OutOfMemory:
            self.release(size)
            raise

    def release(self, size: int) -> None:
        """See `Graphs`."""
        session, numbers = self._captured.pop(size)
        for number in numbers:
            session.release_captured_graph(number)
        self._sessions.close(size)


def _capture_for(batch_set: BatchSet, session: Any, size: int, number: int) -> Callable[[], None]:
    binding = bind_memory(session, batch_set.inputs, batch_set.outputs, size)
    # The wrappers of the package do lookups in each call, and the results do not change.
    run = getattr(session, "_sess", session).run_with_iobinding
    bound = getattr(binding, "_iobinding", binding)
    with _capturing:
        # ONNX Runtime captures the graph in this run.
        _run_bound(run, bound, _graph_options(number))
    options = _graph_options(number)
    options.add_run_config_entry(_DO_NOT_WAIT, "1")
    return lambda: _run_bound(run, bound, options)


def _graph_options(number: int) -> onnxruntime.RunOptions:
    """Options of a run that captures or repeats the CUDA graph with this id."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_GRAPH_ID, str(number))
    # Failures are raised.
    options.log_severity_level = 4
    return options


def _run_bound(run: Callable[..., None], bound: Any, options: onnxruntime.RunOptions) -> None:
    try:
        run(bound, options)
    except Exception as error:
        raise_if_out_of_memory(error)
        raise
