"""Executions of a session of ONNX Runtime: it copies each batch, or is bound to memory that stays in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime

from stoker.runtimes.base import Runtime
from stoker.runtimes.onnx.bfloat16 import element_type, with_bfloat16
from stoker.runtimes.onnx.sessions import raise_if_out_of_memory
from stoker.runtimes.pinned_memory import StagedMemory, StagedTensor
from stoker.tensors import Signature


class CopiedExecution:
    """Plain calls with arrays in host memory, which ONNX Runtime copies; batches of any size, from any thread."""

    choice = "execution copied"

    def __init__(self, session: onnxruntime.InferenceSession, signature: Signature) -> None:
        self.signature = signature
        self._session = session
        # The session of the package looks up names in each call, which the signature has already.
        wrapped = with_bfloat16(session)
        self._run = getattr(wrapped, "_sess", wrapped).run
        self._input_names = [spec.name for spec in signature.inputs]
        self._output_names = [spec.name for spec in signature.outputs]

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        feeds = dict(zip(self._input_names, inputs, strict=True))
        try:
            outputs: list[np.ndarray] = self._run(self._output_names, feeds, None)
        except Exception as error:
            raise_if_out_of_memory(error)
            raise
        return outputs

    def fork(self) -> CopiedExecution:
        """Return another execution of the same session."""
        return CopiedExecution(self._session, self.signature)

    def first_axes(self) -> dict[str, str | None]:
        """Return for each input the name of its first axis, None if it has none."""
        return {value.name: _name_of(value.shape[0]) for value in self._session.get_inputs()}

    def fixed_axes(self) -> dict[str, int]:
        """Return sizes of other named axes that are free in the model and fixed in the signature."""
        shapes = {spec.name: spec.shape for spec in self.signature.inputs}
        sizes = [
            (_name_of(axis), size)
            for value in self._session.get_inputs()
            for axis, size in zip(value.shape[1:], shapes[value.name], strict=True)
        ]
        return {name: size for name, size in sizes if name is not None}


def _name_of(axis: object) -> str | None:
    return axis if isinstance(axis, str) else None


def bind_memory(
    session: Any, inputs: Sequence[StagedTensor], outputs: Sequence[StagedTensor], rows: int
) -> Any:
    """Return a binding of a session to the first `rows` rows of tensors on the GPU."""
    binding = session.io_binding()
    for side, bind_one in ((inputs, binding.bind_input), (outputs, binding.bind_output)):
        for staged in side:
            kind = element_type(staged.dtype)
            bind_one(staged.name, "cuda", 0, kind, [rows, *staged.shape], staged.device_address)
    return binding


class BoundExecution:
    """Batches of prepared sizes in memory that stays in place; other batches are copied.

    The outputs of `run` are overwritten by the next batch.
    """

    choice = "execution bound"

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        copied: CopiedExecution,
        memory: StagedMemory,
        fork: Callable[[], Runtime],
    ) -> None:
        """Wrap a session; `prepare` comes before the first `run`.

        Args:
            copied: Runs batches of other sizes.
            memory: The memory of this instance.
            fork: Makes another runtime like this one, with memory of its own.
        """
        self.signature = copied.signature
        self._session = session
        self._copied = copied
        self._memory = memory
        self._fork = fork
        self._prepared: dict[int, Any] = {}

    def prepare(self, rows: int) -> None:
        """Bind batches of `rows` to their addresses and run one.

        Raises:
            OutOfMemory: The device has no memory for it.
            Exception: ONNX Runtime cannot run it with a binding.
        """
        binding = bind_memory(self._session, self._memory.inputs, self._memory.outputs, rows)
        self._run_bound(binding)
        self._prepared[rows] = binding

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        rows = len(inputs[0])
        prepared = self._prepared.get(rows)
        if prepared is None:
            return self._copied.run(inputs)
        self._memory.send(inputs)
        self._run_bound(prepared)
        return self._memory.receive(rows)

    def buffers(self) -> Sequence[np.ndarray]:
        """See `BufferedRuntime`."""
        return self._memory.host_inputs()

    def fork(self) -> Runtime:
        """Return another execution with memory of its own."""
        return self._fork()

    def _run_bound(self, binding: Any) -> None:
        try:
            # It returns when the device is done.
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise_if_out_of_memory(error)
            raise


def bind(
    session: onnxruntime.InferenceSession,
    signature: Signature,
    memory: Callable[[], StagedMemory],
    sizes: Sequence[int],
) -> BoundExecution:
    """Bind a shared session: each fork has memory of its own.

    Args:
        memory: Allocates the memory of one instance.
    """
    copied = CopiedExecution(session, signature)
    bound = BoundExecution(session, copied, memory(), lambda: bind(session, signature, memory, sizes))
    for rows in sizes:
        bound.prepare(rows)
    return bound
