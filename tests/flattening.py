"""A model that reshapes by the size of its batch, and sessions for it on the CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from stoker.runtimes.onnx.sessions import FixedSize

__all__ = ["WIDE", "CpuSessions", "flattening"]

WIDE = 128


def flattening(axis: str | None, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Y = x @ w + b, reshaped to a shape computed from the size of the batch, as exporters write it."""
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
    """A stand-in for `OnnxSessions` that opens sessions on the CPU.

    Attributes:
        fixed: The options of each opened session.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self.model: Path | bytes = path if content is None else content
        self.deployment = SimpleNamespace(name="flattening", path=path)
        self.fixed: list[FixedSize] = []

    def open_with_graphs(self, stream: int, fixed: FixedSize) -> onnxruntime.InferenceSession:
        """Open a session; see `OnnxSessions`."""
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
