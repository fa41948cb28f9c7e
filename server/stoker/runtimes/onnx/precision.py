"""The conversion of ONNX models to 16 bits when they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from stoker.errors import LoadFailed
from stoker.runtimes.precision import is_converted
from stoker.system.extras import how_to_install

MOST_BYTES: Final = (1 << 31) - (1 << 20)
"""The limit of a serialised message, less room for the graph."""
_MOST_COMPARED_BYTES: Final = 1 << 30
_BFLOAT16: Final = 16
"""The number of bfloat16 in ONNX."""


def weight_bytes(path: Path) -> int:
    """Return the size of a file, and of the file beside it with large weights."""
    beside = (path.with_name(path.name + suffix) for suffix in (".data", "_data"))
    return path.stat().st_size + sum(file.stat().st_size for file in beside if file.is_file())


def is_compared(precision: str, path: Path) -> bool:
    """Whether to compare a model with float32 on the CPU: it was converted, or the comparison takes little memory."""
    return is_converted(precision) or weight_bytes(path) <= _MOST_COMPARED_BYTES


def convert(name: str, source: Path | bytes, precision: str) -> bytes:
    """Convert a model's float32 weights and operators to 16 bits; its inputs and outputs do not change.

    Operators that have no float16 form, or lose too much by it, stay in float32 between casts. A model without
    float32 weights does not change.

    Args:
        precision: `fp16` or `bf16`.

    Returns:
        The converted model, serialised.

    Raises:
        LoadFailed: The `onnx` package is missing, the model is too large, or it cannot be converted.
    """
    try:
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16
    except ImportError as error:
        raise LoadFailed(
            f"{name}: precision: {precision} converts the model with the onnx package ({error}); "
            f"{how_to_install('fp16')}"
        ) from error
    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(str(source))
    except Exception as error:
        raise LoadFailed(f"{name}: {source!s:.200} cannot be read: {error}") from error
    if _weight_bytes(model) > MOST_BYTES:
        raise LoadFailed(
            f"{name}: precision: {precision} converts models of up to 2 GiB when they are loaded; convert this one "
            "beforehand, and leave the setting out"
        )
    if not any(tensor.data_type == onnx.TensorProto.FLOAT for tensor in model.graph.initializer):
        # The model was converted before. A second conversion would make two nodes of one name.
        unchanged: bytes = model.SerializeToString()
        return unchanged
    try:
        converted = convert_float_to_float16(model, keep_io_types=True)
        if precision == "bf16":
            _make_bfloat16(converted)
        content: bytes = converted.SerializeToString()
    except Exception as error:
        raise LoadFailed(f"{name}: the model cannot be converted to {precision}: {error}") from error
    return content


def _weight_bytes(model: Any) -> int:
    return sum(len(tensor.raw_data) + 4 * len(tensor.float_data) for tensor in model.graph.initializer)


def _make_bfloat16(model: Any) -> None:
    """Replace float16 by bfloat16 in weights, casts and constants."""
    from ml_dtypes import bfloat16
    from onnx import TensorProto, numpy_helper

    inputs = {value.name for value in (*model.graph.input, *model.graph.output)}

    def convert_tensor(tensor: Any) -> None:
        if tensor.data_type == TensorProto.FLOAT16:
            array = numpy_helper.to_array(tensor).astype(bfloat16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    for tensor in model.graph.initializer:
        convert_tensor(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
                attribute.i = _BFLOAT16
            if attribute.HasField("t"):
                convert_tensor(attribute.t)
    for value in model.graph.value_info:
        kind = value.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT16 and value.name not in inputs:
            kind.elem_type = _BFLOAT16
