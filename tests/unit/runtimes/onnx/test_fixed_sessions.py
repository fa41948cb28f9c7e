"""Sessions for batches of one size each."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.cuda_puppets import PuppetCudart
from tests.flattening import WIDE, CpuSessions, flattening

from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.onnx.executions import CopiedExecution
from stoker.runtimes.onnx.fixed_sessions import BATCH_AXIS, FixedSessions, name_batch_axis
from stoker.runtimes.onnx.sessions import FixedSize
from stoker.tensors import Signature, TensorSpec


def operators(session: onnxruntime.InferenceSession) -> list[str]:
    """Return the operators of a session's nodes."""
    return [
        node.op_type for part in session.get_provider_graph_assignment_info() for node in part.get_nodes()
    ]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Write the model, with its weights in the file."""
    path = tmp_path / "flattening.onnx"
    onnx.save(flattening("rows"), path)
    return path


@pytest.mark.parametrize("axis", ["rows", None])
def test_fixed_size_folds_computations_of_shapes(tmp_path: Path, axis: str | None) -> None:
    """No node is left for the CPU; axes without a name get one."""
    path = tmp_path / "flattening.onnx"
    onnx.save(flattening(axis), path)
    sessions: Any = CpuSessions(path)
    fixed = FixedSessions(_replaceable(sessions), {"x": axis}, [2, 4], None)
    for rows in (4, 2):
        session = fixed.open(rows, 1)
        assert session is fixed.open(rows, 1)
        assert session.get_inputs()[0].shape == [rows, WIDE]
        assert set(operators(session)) <= {"MatMul", "Reshape", "Add", "Gemm"}
        (output,) = session.run(None, {"x": np.ones((rows, WIDE), np.float32)})
        assert (output == 2 * WIDE + 1).all()


def test_other_known_axes_are_fixed_too(tmp_path: Path) -> None:
    """The declaration may fix an axis that is free in the model, such as words."""
    model = flattening("rows")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "words"
    path = tmp_path / "flattening.onnx"
    onnx.save(model, path)
    plain = CopiedExecution(
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]),
        Signature((TensorSpec("x", "float32", (WIDE,)),), (TensorSpec("y", "float32", (WIDE,)),)),
    )
    assert (plain.first_axes(), plain.fixed_axes()) == ({"x": "rows"}, {"words": WIDE})
    sessions: Any = CpuSessions(path)
    session = FixedSessions(sessions, plain.first_axes(), [4], None, plain.fixed_axes()).open(4, 1)
    assert session.get_inputs()[0].shape == [4, WIDE]


def _replaceable(sessions: Any) -> Any:
    """Wrap sessions so that `msgspec.structs.replace` can change their model."""

    class Replaceable(msgspec.Struct):
        model: Path | bytes
        deployment: Any

        def open_with_graphs(self, stream: int, fixed: FixedSize) -> Any:
            sessions.model = self.model
            return sessions.open_with_graphs(stream, fixed)

    return Replaceable(sessions.model, sessions.deployment)


def test_only_inputs_without_a_name_get_one() -> None:
    """The rest of the model does not change."""
    model = flattening(None)
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", None]))
    named = onnx.load_from_string(name_batch_axis(model.SerializeToString(), ["x"]))
    dims = [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in named.graph.input
    ]
    assert dims == [[BATCH_AXIS, WIDE], ["N", 0]]
    named.graph.input[0].CopyFrom(model.graph.input[0])
    assert named == model


def test_sharing_ends_if_onnx_runtime_copies_weights(written: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The free memory shows that it does."""
    caplog.set_level("INFO")
    cudart = PuppetCudart()
    cuda = CudaRuntime(cudart)
    sessions = CpuSessions(written)
    counts: list[int] = []

    def open_with_graphs(stream: int, fixed: FixedSize) -> str:
        counts.append(len(fixed.weights))
        cuda.device_alloc(WIDE * WIDE * 4 + 1000)
        return f"session {len(counts)}"

    sessions.open_with_graphs = open_with_graphs  # type: ignore[assignment,method-assign]
    unchecked: Any = sessions
    fixed = FixedSessions(unchecked, {"x": "rows"}, [1, 2], cuda)
    assert [fixed.open(rows, 1) for rows in (2, 1)] == ["session 2", "session 3"]
    assert counts == [1, 0, 0]
    assert "ONNX Runtime does not use shared weights: each size has its own" in caplog.text
    assert len(cudart.device) == 3


def test_sizes_are_opened_once_by_several_threads(written: Path) -> None:
    """A size that is added later may be opened on another thread."""
    sessions: Any = CpuSessions(written)
    fixed = FixedSessions(sessions, {"x": "rows"}, [1, 2], None)
    threads = [threading.Thread(target=fixed.open, args=(rows, 1)) for rows in (1, 2, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(size.axes["rows"] for size in sessions.fixed) == [1, 2]
    assert [size.memory_share for size in sessions.fixed if size.axes["rows"] == 2] == [2 / 3]
    fixed.close(1)
    fixed.open(1, 1)
    assert len(sessions.fixed) == 3
