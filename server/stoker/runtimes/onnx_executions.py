"""How a batch gets to a session of ONNX Runtime and back: copied by it, or bound to memory that stays in place."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime

from stoker.errors import LoadFailed
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.onnx_bfloat16 import element_type, with_bfloat16
from stoker.runtimes.onnx_sessions import raise_if_out_of_memory
from stoker.runtimes.pinned_memory import StagedMemory
from stoker.tensors import Signature

_GRAPH_ID: Final = "gpu_graph_id"
_NO_GRAPH: Final = -1

# 0 is what runs without an id get. An id is of one shape of one session, and never given out again.
_graph_ids = itertools.count(1)
# While one thread captures, CUDA forbids all others in the process calls that a capture could not repeat.
_capturing = threading.Lock()


class CopiedExecution:
    """Plain calls with arrays in host memory, which ONNX Runtime copies; batches of any size, from any thread."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        signature: Signature,
        options: onnxruntime.RunOptions | None = None,
    ) -> None:
        self.signature = signature
        self._session = session
        self._options = options
        # What the package puts around its own session looks up on each call what the signature says already.
        able = with_bfloat16(session)
        self._run = getattr(able, "_sess", able).run
        self._input_names = [spec.name for spec in signature.inputs]
        self._output_names = [spec.name for spec in signature.outputs]

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        feeds = dict(zip(self._input_names, inputs, strict=True))
        try:
            outputs: list[np.ndarray] = self._run(self._output_names, feeds, self._options)
        except Exception as error:
            raise_if_out_of_memory(error)
            raise
        return outputs

    def fork(self) -> CopiedExecution:
        """Return another execution of the same session."""
        return CopiedExecution(self._session, self.signature, self._options)


class BoundExecution:
    """Batches of certain sizes in memory that stays in place; others are copied.

    The outputs of `run` are overwritten by the next batch.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        copied: CopiedExecution,
        memory: StagedMemory,
        fork: Callable[[], Runtime],
    ) -> None:
        """Wrap a session; `prepare` comes before the first `run`.

        Args:
            copied: How it runs batches of other sizes.
            memory: Of this instance alone.
            fork: Makes a further runtime like this one, with memory of its own.
        """
        self.signature = copied.signature
        self._session = session
        self._copied = copied
        self._memory = memory
        self._fork = fork
        self._prepared: dict[int, tuple[Any, onnxruntime.RunOptions | None]] = {}

    def prepare(self, rows: int, *, graph: bool = False) -> None:
        """Bind batches of `rows` to their addresses and run one; with `graph`, on the thread that will call `run`.

        Raises:
            OutOfMemory: The device has no memory for it.
            Exception: ONNX Runtime cannot run it so, or CUDA cannot capture it.
        """
        binding = self._session.io_binding()
        for staged in self._memory.inputs:
            shape = [rows, *staged.shape]
            binding.bind_input(
                staged.name, "cuda", 0, element_type(staged.dtype), shape, staged.device_address
            )
        for staged in self._memory.outputs:
            shape = [rows, *staged.shape]
            binding.bind_output(
                staged.name, "cuda", 0, element_type(staged.dtype), shape, staged.device_address
            )
        options = _graph_options(next(_graph_ids)) if graph else None
        if graph:
            with _capturing:
                self._run_bound(binding, options)
        else:
            self._run_bound(binding, options)
        self._prepared[rows] = binding, options

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        rows = len(inputs[0])
        prepared = self._prepared.get(rows)
        if prepared is None:
            return self._copied.run(inputs)
        self._memory.send(inputs)
        self._run_bound(*prepared)
        return self._memory.receive(rows)

    def buffers(self) -> Sequence[np.ndarray]:
        """See `BufferedRuntime`."""
        return self._memory.host_inputs()

    def fork(self) -> Runtime:
        """Return another execution with memory of its own."""
        return self._fork()

    def _run_bound(self, binding: Any, options: onnxruntime.RunOptions | None) -> None:
        try:
            # Returns when the device has done it.
            self._session.run_with_iobinding(binding, options)
        except Exception as error:
            raise_if_out_of_memory(error)
            raise


def _graph_options(graph_id: int) -> onnxruntime.RunOptions:
    """Options of a run that captures or repeats the CUDA graph with this id."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_GRAPH_ID, str(graph_id))
    return options


def bind(
    session: onnxruntime.InferenceSession,
    signature: Signature,
    memory: Callable[[], StagedMemory],
    sizes: Sequence[int],
) -> BoundExecution:
    """Bind a session that is shared: each fork has memory of its own.

    Args:
        memory: Takes memory for one instance.
    """
    copied = CopiedExecution(session, signature)
    bound = BoundExecution(session, copied, memory(), lambda: bind(session, signature, memory, sizes))
    for rows in sizes:
        bound.prepare(rows)
    return bound


def bind_with_graphs(
    open_session: Callable[[], onnxruntime.InferenceSession],
    signature: Signature,
    memory: Callable[[], StagedMemory],
    sizes: Sequence[int],
) -> BoundExecution:
    """Capture one CUDA graph for each size of batches, on the thread that calls and will run them.

    ONNX Runtime keeps captured graphs for each thread, and one session may capture on one alone: each fork opens a
    session of its own.

    Args:
        open_session: Opens a session that captures graphs.

    Raises:
        LoadFailed: By `fork`, if there is no memory for a further session.
    """

    def fork() -> Runtime:
        try:
            return bind_with_graphs(open_session, signature, memory, sizes)
        except OutOfMemory as error:
            raise LoadFailed(
                "the device has no memory for a further instance with CUDA graphs, which has weights of its own; "
                f"set execution: bound, or instances: 1 ({error})"
            ) from error

    session = open_session()
    copied = CopiedExecution(session, signature, _graph_options(_NO_GRAPH))
    bound = BoundExecution(session, copied, memory(), fork)
    # The largest first: what it needs is enough for all others.
    for rows in sorted(sizes, reverse=True):
        bound.prepare(rows, graph=True)
    return bound
