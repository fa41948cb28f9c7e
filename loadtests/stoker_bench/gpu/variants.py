"""One ONNX model in several precisions, and with several types of numbers at its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PRECISIONS", "WIRE_DTYPES", "Precision", "WireDtype", "variant"]

Precision = Literal["fp32", "tf32", "fp16"]
WireDtype = Literal["float32", "float16", "uint8"]
PRECISIONS: Final[Sequence[Precision]] = ("fp32", "tf32", "fp16")
"""`fp32` and `tf32` are one file, run with other settings of the CUDA provider."""
WIRE_DTYPES: Final[Sequence[WireDtype]] = ("float32", "float16", "uint8")
"""What callers send; integers are scaled to 0..1 inside the graph."""


def variant(model: Any, precision: Precision, wire_dtype: WireDtype) -> Any:
    """Return a copy of a model that computes in `precision` and takes `wire_dtype`; outputs stay float32.

    Args:
        model: An `onnx.ModelProto` with one float32 input, float32 outputs and plain operators.
        precision: What its weights and activations are kept in.
        wire_dtype: The type of the input.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if precision == "fp16":
        copy = _in_float16(copy)
    _take(copy, wire_dtype)
    onnx.checker.check_model(copy)
    return copy


def _in_float16(model: Any) -> Any:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    outputs = [output.name for output in model.graph.output]
    # Every weight: by itself the converter leaves small ones in float32, and casts at each run.
    converted = convert_float_to_float16(model, keep_io_types=outputs, force_fp16_initializers=True)
    # A server that is asked for FP16 may convert once more, and would name its own casts alike.
    for node in converted.graph.node:
        node.name = _renamed(node.name)
        node.input[:] = map(_renamed, node.input)
        node.output[:] = map(_renamed, node.output)
    for value in converted.graph.value_info:
        value.name = _renamed(value.name)
    return converted


def _renamed(name: str) -> str:
    return name.replace("graph_output_cast", "float32_output")


def _take(model: Any, wire_dtype: WireDtype) -> None:
    """Put a cast, and for integers a scale, between the input and whatever reads it."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    (tensor,) = model.graph.input
    computed = tensor.type.tensor_type.elem_type
    sent = helper.np_dtype_to_tensor_dtype(np.dtype(wire_dtype))
    if sent == computed:
        return
    inner = f"{tensor.name}_values"
    for node in model.graph.node:
        for place, source in enumerate(node.input):
            if source == tensor.name:
                node.input[place] = inner
    tensor.type.tensor_type.elem_type = sent
    if wire_dtype == "uint8":
        dtype = np.float16 if computed == TensorProto.FLOAT16 else np.float32
        model.graph.initializer.append(numpy_helper.from_array(np.array(1 / 255, dtype), f"{inner}_scale"))
        cast = helper.make_node("Cast", [tensor.name], [f"{inner}_cast"], f"{inner}_cast", to=computed)
        scaled = helper.make_node("Mul", [f"{inner}_cast", f"{inner}_scale"], [inner], inner)
        added = [cast, scaled]
    else:
        added = [helper.make_node("Cast", [tensor.name], [inner], inner, to=computed)]
    for place, node in enumerate(added):
        model.graph.node.insert(place, node)
