"""The layers of `stoker train mnist --network cnn` with seeded random weights, as an ONNX graph."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

__all__ = ["INPUT_NAME", "OUTPUT_NAME", "PIXELS", "mnist_cnn"]

INPUT_NAME: Final = "images"
OUTPUT_NAME: Final = "logits"
PIXELS: Final = 784
OPSET: Final = 17
IR_VERSION: Final = 8
SHAPES: Final = {
    "convolution1": (24, 1, 3, 3),
    "convolution2": (48, 24, 3, 3),
    "hidden1": (48 * 5 * 5, 128),
    "output": (128, 10),
}


def mnist_cnn(seed: int = 7) -> Any:
    """Return the network as an `onnx.ModelProto`: float32 [rows, 784] to float32 [rows, 10]."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(seed)
    initializers = [numpy_helper.from_array(np.array([-1, 1, 28, 28], np.int64), "image_shape")]
    for name, shape in SHAPES.items():
        convolved = name.startswith("convolution")
        inputs = math.prod(shape[1:]) if convolved else shape[0]
        kernel = random.standard_normal(shape) * math.sqrt(2 / inputs)
        bias = random.standard_normal(shape[0] if convolved else shape[1]) * 0.1
        initializers.append(numpy_helper.from_array(kernel.astype(np.float32), name))
        initializers.append(numpy_helper.from_array(bias.astype(np.float32), f"{name}_bias"))
    pooled = {"kernel_shape": [2, 2], "strides": [2, 2]}
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Reshape", [INPUT_NAME, "image_shape"], "image", {}),
        ("Conv", ["image", "convolution1", "convolution1_bias"], "convolved1", {"kernel_shape": [3, 3]}),
        ("Relu", ["convolved1"], "active1", {}),
        ("MaxPool", ["active1"], "pooled1", pooled),
        ("Conv", ["pooled1", "convolution2", "convolution2_bias"], "convolved2", {"kernel_shape": [3, 3]}),
        ("Relu", ["convolved2"], "active2", {}),
        ("MaxPool", ["active2"], "pooled2", pooled),
        ("Flatten", ["pooled2"], "features", {}),
        ("Gemm", ["features", "hidden1", "hidden1_bias"], "sum1", {}),
        ("Relu", ["sum1"], "hidden", {}),
        ("Gemm", ["hidden", "output", "output_bias"], OUTPUT_NAME, {}),
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, [to], to, **more) for operator, inputs, to, more in steps],
        "mnist_cnn",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, ["rows", PIXELS])],
        [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, ["rows", 10])],
        initializers,
    )
    return helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="stoker_bench",
    )
