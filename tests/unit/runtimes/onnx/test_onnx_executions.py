"""Bound memory, by puppets of the CUDA runtime and of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.cuda_puppets import DOUBLES, PuppetCudart, PuppetSession, address_of
from tests.tiny_models import write_doubler

from stoker.runtimes.base import BufferedRuntime, ForkingRuntime, OutOfMemory
from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.onnx.executions import BoundExecution, CopiedExecution, bind
from stoker.runtimes.pinned_memory import StagedMemory
from stoker.tensors import Signature, TensorSpec


def taking(cudart: PuppetCudart, rows: int = 8) -> Callable[[], StagedMemory]:
    """Return a function that allocates the memory of an instance."""
    return lambda: StagedMemory(CudaRuntime(cudart), DOUBLES.inputs, DOUBLES.outputs, rows)


def rows_of(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)


def ran(cudart: PuppetCudart) -> list[tuple[Any, ...]]:
    return [
        call[:1] if call[0].startswith("to_") else call for call in cudart.calls if call[0] != "host_alloc"
    ]


def test_a_bound_batch_is_sent_before_it_runs_and_received_after() -> None:
    """It waits for both copies; the answers are at the same address each time."""
    cudart = PuppetCudart()
    bound = bind(PuppetSession(cudart), DOUBLES, taking(cudart), [2, 4])
    cudart.calls.clear()

    (first,) = bound.run([rows_of(2)])
    place = address_of(first)
    assert first.tolist() == (rows_of(2) * 2).tolist()
    assert ran(cudart) == [("to_device",), ("synchronize",), ("run", 2, 0), ("to_host",), ("synchronize",)]
    (second,) = bound.run([rows_of(4, start=50)])
    assert second.tolist() == (rows_of(4, start=50) * 2).tolist()
    assert address_of(second) == place


def test_a_size_that_is_not_prepared_is_copied() -> None:
    """It runs as plain calls do."""
    cudart = PuppetCudart()
    plain = PuppetSession(cudart)
    bound = bind(plain, DOUBLES, taking(cudart), [2])
    assert bound.run([rows_of(3)])[0].tolist() == (rows_of(3) * 2).tolist()
    assert plain.plain_runs == [0]


def test_a_fork_of_bound_memory_shares_the_session_alone() -> None:
    """Two instances never write to the same addresses, on the host or on the device."""
    cudart = PuppetCudart()
    bound = bind(PuppetSession(cudart), DOUBLES, taking(cudart), [2])
    assert isinstance(bound, ForkingRuntime)
    assert isinstance(bound, BufferedRuntime)
    fork = bound.fork()
    assert isinstance(fork, BoundExecution)
    (mine,), (its,) = bound.run([rows_of(2)]), fork.run([rows_of(2, start=9)])
    assert mine.tolist() == (rows_of(2) * 2).tolist()
    assert its.tolist() == (rows_of(2, start=9) * 2).tolist()
    assert len(cudart.device) == 4
    assert bound.buffers()[0].shape == (8, 3)


def test_memory_error_of_onnx_runtime_becomes_out_of_memory() -> None:
    """Bound or copied, the error lets the worker try the batch in parts."""
    cudart = PuppetCudart()
    session = PuppetSession(cudart)
    bound = bind(session, DOUBLES, taking(cudart), [4])
    session.most_rows = 2
    for size in (4, 3):
        with pytest.raises(OutOfMemory, match="requested buffer"):
            bound.run([rows_of(size)])
    with pytest.raises(OutOfMemory, match="requested buffer"):
        CopiedExecution(session, DOUBLES).run([rows_of(8)])


class OnTheCpu:
    """A real session of the CPU, with the puppet's device memory, which is this process's, for that of a GPU."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.session = session
        self.runs = 0

    def io_binding(self) -> Any:
        real = self.session.io_binding()

        def bind(method: str) -> Any:
            return lambda name, kind, *rest: getattr(real, method)(name, {"cuda": "cpu"}[kind], *rest)

        return SimpleNamespace(real=real, bind_input=bind("bind_input"), bind_output=bind("bind_output"))

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        self.runs += 1
        self.session.run_with_iobinding(binding.real, options)

    def run(self, *arguments: Any) -> Any:
        return self.session.run(*arguments)


def test_real_onnx_runtime_accepts_the_calls(tmp_path: Path) -> None:
    """The calls have names, types, shapes and addresses as for a GPU."""
    path = str(write_doubler(tmp_path / "doubler.onnx"))
    session: Any = OnTheCpu(onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]))
    spec = (TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (4,)),)
    signature = Signature(*spec)

    def memory() -> StagedMemory:
        return StagedMemory(CudaRuntime(PuppetCudart()), *spec, 8)

    bound = bind(session, signature, memory, [2, 8])
    random = np.random.default_rng(6)
    for size in (8, 2, 5, 8):
        rows = random.random((size, 4), np.float32)
        assert bound.run([rows])[0].tolist() == (rows * 2).tolist()
    assert session.runs == 5


def test_other_failures_are_unchanged() -> None:
    """Smaller batches do not help against a fault of the device."""
    cudart = PuppetCudart()
    session = PuppetSession(cudart)
    bound = bind(session, DOUBLES, taking(cudart), [4])
    session.failure = RuntimeError("CUDA failure 700: an illegal memory access was encountered")
    for size in (4, 3):
        with pytest.raises(RuntimeError, match="failure 700"):
            bound.run([rows_of(size)])
