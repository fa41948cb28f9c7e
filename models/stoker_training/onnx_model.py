"""The ONNX model: input `x`, output `logits`, a dynamic batch axis.

tf2onnx converts the function that the SavedModel serves. It was tried with TensorFlow 2.21, protobuf 7 and
numpy 2.4 and gives plain graphs (MatMul, Add, Relu, Conv, MaxPool), so the networks are not described a
second time here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker_training.chunks import in_chunks
from stoker_training.saved_model import serving_function

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from stoker_training.frameworks import keras

__all__ = ["onnx_logits", "write_onnx"]

_OPSET = 17


def write_onnx(model: keras.Model, path: Path) -> None:
    """Convert the Keras model and write it, checked against the ONNX specification."""
    import onnx
    import tf2onnx

    serve = serving_function(model)
    converted, _ = tf2onnx.convert.from_function(serve, input_signature=serve.input_signature, opset=_OPSET)
    for tensor in (*converted.graph.input, *converted.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.checker.check_model(converted, full_check=True)
    onnx.save(converted, path)


def onnx_logits(path: Path, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run the written ONNX model on the CPU: rows float32[n, 784] to logits float32[n, 10]."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return in_chunks(lambda chunk: session.run(["logits"], {"x": chunk})[0], rows)
