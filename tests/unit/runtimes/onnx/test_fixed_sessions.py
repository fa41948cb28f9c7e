"""Sessions for one size of batches that share weights: by ONNX Runtime on the CPU, with CUDA's memory a puppet's."""

from __future__ import annotations

import dataclasses
import gc
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.cuda_puppets import PuppetCudart

from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.onnx.executions import CopiedExecution
from stoker.runtimes.onnx.fixed_sessions import (
    BATCH_AXIS,
    FixedSessions,
    SharedWeights,
    name_batch_axis,
    read_weights,
)
from stoker.runtimes.onnx.sessions import FixedSize
from stoker.tensors import Signature, TensorSpec

WIDE = 128
CPU_DEVICE = 1


def flattening(axis: str | None, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Y = x @ w + b, reshaped by what is computed from the size of the batch, as exporters write it."""
    numbers = helper.tensor_dtype_to_np_dtype(dtype)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], name="find_shape"),
        helper.make_node("Gather", ["shape", "zero"], ["rows"], name="find_rows"),
        helper.make_node("Unsqueeze", ["rows", "first"], ["rows1"], name="wrap_rows"),
        helper.make_node("Concat", ["rows1", "width"], ["flat"], axis=0, name="find_flat"),
        helper.make_node("MatMul", ["x", "w"], ["product"], name="multiply"),
        helper.make_node("Reshape", ["product", "flat"], ["reshaped"], name="reshape"),
        helper.make_node("Add", ["reshaped", "b"], ["y"], name="add"),
    ]
    constants = {
        "w": np.full((WIDE, WIDE), 2, numbers),
        "b": np.ones(WIDE, numbers),
        "zero": np.array(0, np.int64),
        "first": np.array([0], np.int64),
        "width": np.array([WIDE], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "flattening",
        [helper.make_tensor_value_info("x", dtype, [axis, WIDE])],
        [helper.make_tensor_value_info("y", dtype, [axis, WIDE])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class CpuSessions:
    """Stands in for `OnnxSessions`: opens what it is asked for on the CPU.

    Attributes:
        fixed: With what each session was opened.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self.model: Path | bytes = path if content is None else content
        self.deployment = SimpleNamespace(name="flattening", path=path)
        self.fixed: list[FixedSize] = []

    def open_with_graphs(self, stream: int, fixed: FixedSize) -> onnxruntime.InferenceSession:
        self.fixed.append(fixed)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if isinstance(self.model, bytes):
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(self.deployment.path.parent)
            )
        fixed.apply(options)
        model = self.model if isinstance(self.model, bytes) else str(self.model)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def operators(session: onnxruntime.InferenceSession) -> list[str]:
    """Those of a session's nodes, as it runs them."""
    return [
        node.op_type for part in session.get_provider_graph_assignment_info() for node in part.get_nodes()
    ]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The model, with its weights in the file."""
    path = tmp_path / "flattening.onnx"
    onnx.save(flattening("rows"), path)
    return path


@pytest.mark.parametrize("axis", ["rows", None])
def test_a_fixed_size_folds_what_is_computed_from_it(tmp_path: Path, axis: str | None) -> None:
    """So nothing is left to pass between the CPU and the GPU; axes without a name get one."""
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


def test_other_axes_that_are_known_are_fixed_too(tmp_path: Path) -> None:
    """A sequence may be free in the model, and fixed by what its operator declares."""
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
    """`dataclasses.replace` makes an `OnnxSessions` with another model; here another stand-in."""

    @dataclasses.dataclass
    class Replaceable:
        model: Path | bytes
        deployment: Any

        def open_with_graphs(self, stream: int, fixed: FixedSize) -> Any:
            sessions.model = self.model
            return sessions.open_with_graphs(stream, fixed)

    return Replaceable(sessions.model, sessions.deployment)


def shared(path: Path, cudart: PuppetCudart, device_type: int = CPU_DEVICE) -> SharedWeights:
    """The weights of a model in the puppet's memory, which ONNX Runtime takes for the CPU's."""
    return SharedWeights(CudaRuntime(cudart), list(read_weights(path, path.parent)), device_type)


@pytest.mark.parametrize("external", [False, True])
def test_sessions_use_shared_weights_in_place(tmp_path: Path, external: bool) -> None:
    """What is written into them afterwards shows in the answers of all sessions."""
    path = tmp_path / "flattening.onnx"
    onnx.save(
        flattening("rows"), path, save_as_external_data=external, location="weights", size_threshold=1000
    )
    cudart = PuppetCudart()
    weights = shared(path, cudart)
    assert list(weights.values) == ["w"]
    assert weights.size_bytes == WIDE * WIDE * 4
    opened = [
        CpuSessions(path).open_with_graphs(1, FixedSize({"rows": rows}, weights.values)) for rows in (1, 4)
    ]
    x = np.ones((4, WIDE), np.float32)
    assert [
        session.run(None, {"x": x[:size]})[0][0, 0] for session, size in zip(opened, (1, 4), strict=True)
    ] == [257, 257]
    (memory,) = cudart.device.values()
    memory[: 4 * WIDE * WIDE] = np.full(WIDE * WIDE, 3, np.float32).tobytes()
    assert [
        session.run(None, {"x": x[:size]})[0][0, 0] for session, size in zip(opened, (1, 4), strict=True)
    ] == [385, 385]
    del opened, weights
    gc.collect()
    assert cudart.device == {}


def test_weights_on_the_gpu_are_where_onnx_runtime_looks_for_them(written: Path) -> None:
    """The device of the values is CUDA's, at the address of their memory."""
    cudart = PuppetCudart()
    weights = shared(written, cudart, 2)
    (value,) = weights.values.values()
    assert (value.device_name(), value.shape(), value.data_type()) == ("cuda", [WIDE, WIDE], "tensor(float)")
    assert value.data_ptr() in cudart.device


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_weights_of_all_kinds_are_read(dtype: int) -> None:
    """Their bytes are those of the model; small ones, and those that ONNX Runtime lays out anew, are left out."""
    model = flattening("rows", dtype)
    large = np.ones((WIDE, WIDE, 3, 3), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(large, "kernel"))
    model.graph.node.append(helper.make_node("Conv", ["picture", "kernel"], ["unused"]))
    numbers = np.full((WIDE, WIDE), 2, helper.tensor_dtype_to_np_dtype(dtype))
    found = list(read_weights(model.SerializeToString(), Path()))
    expected = [] if numbers.nbytes < 1 << 16 else [("w", (WIDE, WIDE), numbers.tobytes())]
    assert [(weight.name, weight.shape, weight.content) for weight in found] == expected


def test_only_inputs_without_a_name_get_one() -> None:
    """Everything else of the model stays as it is."""
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


def test_weights_that_are_copied_all_the_same_are_given_up(
    written: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ONNX Runtime does not say so; the memory that is left does."""
    caplog.set_level("INFO")
    cudart = PuppetCudart()
    cuda = CudaRuntime(cudart)
    sessions = CpuSessions(written)
    taken: list[int] = []

    def open_with_graphs(stream: int, fixed: FixedSize) -> str:
        taken.append(len(fixed.weights))
        cuda.device_alloc(WIDE * WIDE * 4 + 1000)
        return f"session {len(taken)}"

    sessions.open_with_graphs = open_with_graphs  # type: ignore[assignment,method-assign]
    unchecked: Any = sessions
    fixed = FixedSessions(unchecked, {"x": "rows"}, [1, 2], cuda)
    assert [fixed.open(rows, 1) for rows in (2, 1)] == ["session 2", "session 3"]
    assert taken == [1, 0, 0]
    assert "ONNX Runtime does not use shared weights: each size has its own" in caplog.text
    assert len(cudart.device) == 3


def test_sizes_are_opened_once_by_several_threads(written: Path) -> None:
    """One that is added while serving may be opened beside."""
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
