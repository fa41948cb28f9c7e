"""ONNX files written by hand, so that the bench needs no `onnx` package.

An ONNX model is a protocol buffer (https://protobuf.dev/programming-guides/encoding) with the fields of
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stoker.wire.protobuf import VARINT, field, varint_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["FLOAT32", "INT64", "Tensor", "model_bytes", "node"]

FLOAT32: Final = 1
INT64: Final = 7

_IR_VERSION: Final = 8
_OPSET_VERSION: Final = 13
_TYPES: Final = {np.dtype(np.float32): FLOAT32, np.dtype(np.int64): INT64}


class Tensor(NamedTuple):
    """An input or an output.

    Attributes:
        name: Its name.
        dtype: `FLOAT32` or `INT64`.
        shape: Its sizes; names stand for those that are free.
    """

    name: str
    dtype: int
    shape: tuple[int | str, ...]


def _number(number: int, value: int) -> bytes:
    return varint_bytes(number << 3 | VARINT) + varint_bytes(value)


def _bytes(number: int, content: bytes | str) -> bytes:
    return field(number, content.encode() if isinstance(content, str) else content)


def _initializer(name: str, values: NDArray[Any]) -> bytes:
    """Encode a TensorProto: dims 1, data_type 2, name 8, raw_data 9."""
    dims = b"".join(_number(1, dim) for dim in values.shape)
    raw = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
    return dims + _number(2, _TYPES[values.dtype]) + _bytes(8, name) + _bytes(9, raw)


def node(op_type: str, inputs: Sequence[str], output: str) -> bytes:
    """Encode a NodeProto: input 1, output 2, name 3, op_type 4."""
    sources = b"".join(_bytes(1, name) for name in inputs)
    return sources + _bytes(2, output) + _bytes(3, output) + _bytes(4, op_type)


def _value_info(tensor: Tensor) -> bytes:
    """Encode a ValueInfoProto: name 1, type 2."""
    dims = b"".join(
        _bytes(1, _bytes(2, size) if isinstance(size, str) else _number(1, size)) for size in tensor.shape
    )
    tensor_type = _number(1, tensor.dtype) + _bytes(2, dims)
    return _bytes(1, tensor.name) + _bytes(2, _bytes(1, tensor_type))


def model_bytes(
    name: str,
    nodes: Sequence[bytes],
    weights: Mapping[str, NDArray[Any]],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> bytes:
    """Encode a ModelProto (ir_version 1, producer_name 2, graph 7, opset_import 8).

    Its GraphProto has node 1, name 2, initializer 5, input 11, output 12.

    Args:
        name: The graph's name.
        nodes: Its nodes, as `node` encodes them, in an order in which they can be run.
        weights: Its constants by name, float32 or int64.
        inputs: What it takes.
        outputs: What it gives.
    """
    graph = b"".join(_bytes(1, each) for each in nodes) + _bytes(2, name)
    graph += b"".join(_bytes(5, _initializer(each, values)) for each, values in weights.items())
    graph += b"".join(_bytes(11, _value_info(each)) for each in inputs)
    graph += b"".join(_bytes(12, _value_info(each)) for each in outputs)
    opset = _number(2, _OPSET_VERSION)
    return _number(1, _IR_VERSION) + _bytes(2, "stoker_bench") + _bytes(7, graph) + _bytes(8, opset)
