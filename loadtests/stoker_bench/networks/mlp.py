"""The benchmark's model: a 784-300-100-10 perceptron with seeded random weights, as an ONNX file.

The file is written by hand, so that the bench needs no `onnx` package: an ONNX model is a protocol buffer
(https://protobuf.dev/programming-guides/encoding) with the fields of
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["INPUT_NAME", "OUTPUT_NAME", "WIDTHS", "Mlp", "seeded_mlp"]

WIDTHS = (784, 300, 100, 10)
INPUT_NAME = "images"
OUTPUT_NAME = "logits"

IR_VERSION = 8
OPSET_VERSION = 13
FLOAT32 = 1

VARINT, LENGTH_DELIMITED = 0, 2


@dataclass(frozen=True)
class Mlp:
    """A perceptron with ReLU between its layers and none after the last.

    Attributes:
        weights: One float32 array [inputs, outputs] per layer.
        biases: One float32 array [outputs] per layer.
    """

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]

    def logits(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs, float32 [n, 10], for rows, float32 [n, 784]."""
        activations = rows
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                activations = np.maximum(activations, 0)
            activations = activations @ weight + bias
        return activations

    def onnx_bytes(self) -> bytes:
        """Return the model as the bytes of an ONNX file with a dynamic first axis."""
        return _model(self)

    def save(self, path: Path) -> None:
        """Write the model as an ONNX file."""
        path.write_bytes(self.onnx_bytes())


def seeded_mlp(seed: int = 7, widths: tuple[int, ...] = WIDTHS) -> Mlp:
    """Make a perceptron whose random weights depend on the seed alone."""
    random = np.random.default_rng(seed)
    weights, biases = [], []
    for inputs, outputs in itertools.pairwise(widths):
        scale = np.sqrt(2 / inputs)
        weights.append((random.standard_normal((inputs, outputs)) * scale).astype(np.float32))
        biases.append((random.standard_normal(outputs) * 0.1).astype(np.float32))
    return Mlp(tuple(weights), tuple(biases))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | VARINT) + _varint(value)


def _bytes(field: int, content: bytes | str) -> bytes:
    if isinstance(content, str):
        content = content.encode()
    return _varint(field << 3 | LENGTH_DELIMITED) + _varint(len(content)) + content


def _tensor(name: str, values: NDArray[np.float32]) -> bytes:
    """Encode a TensorProto: dims 1, data_type 2, name 8, raw_data 9."""
    dims = b"".join(_number(1, dim) for dim in values.shape)
    raw = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return dims + _number(2, FLOAT32) + _bytes(8, name) + _bytes(9, raw)


def _node(op_type: str, inputs: list[str], output: str) -> bytes:
    """Encode a NodeProto: input 1, output 2, name 3, op_type 4."""
    sources = b"".join(_bytes(1, name) for name in inputs)
    return sources + _bytes(2, output) + _bytes(3, output) + _bytes(4, op_type)


def _value_info(name: str, width: int) -> bytes:
    """Encode a ValueInfoProto (name 1, type 2) of float32 [rows, width]."""
    shape = _bytes(1, _bytes(2, "rows")) + _bytes(1, _number(1, width))
    tensor_type = _number(1, FLOAT32) + _bytes(2, shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, tensor_type))


def _model(mlp: Mlp) -> bytes:
    """Encode a ModelProto (ir_version 1, producer_name 2, graph 7, opset_import 8).

    Its GraphProto has node 1, name 2, initializer 5, input 11, output 12.
    """
    nodes, initializers = b"", b""
    source, last = INPUT_NAME, len(mlp.weights) - 1
    for layer, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
        initializers += _bytes(5, _tensor(f"weight{layer}", weight)) + _bytes(
            5, _tensor(f"bias{layer}", bias)
        )
        output = OUTPUT_NAME if layer == last else f"sum{layer}"
        nodes += _bytes(1, _node("Gemm", [source, f"weight{layer}", f"bias{layer}"], output))
        if layer != last:
            source = f"active{layer}"
            nodes += _bytes(1, _node("Relu", [output], source))
    graph = nodes + _bytes(2, "mlp") + initializers
    graph += _bytes(11, _value_info(INPUT_NAME, mlp.weights[0].shape[0]))
    graph += _bytes(12, _value_info(OUTPUT_NAME, mlp.weights[-1].shape[1]))
    opset = _number(2, OPSET_VERSION)
    return _number(1, IR_VERSION) + _bytes(2, "stoker_bench") + _bytes(7, graph) + _bytes(8, opset)
