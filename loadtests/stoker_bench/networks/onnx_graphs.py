"""ONNX files written by hand, so that the bench needs no `onnx` package.

An ONNX model is a protocol buffer (https://protobuf.dev/programming-guides/encoding) with the fields of
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.wire.protobuf import VARINT, field, varint_bytes

FLOAT32: Final = 1
INT64: Final = 7

_IR_VERSION: Final = 8
_OPSET_VERSION: Final = 13
_TYPES: Final = {np.dtype(np.float32): FLOAT32, np.dtype(np.int64): INT64}


class Tensor(NamedTuple):
    """An input or an output.

    Attributes:
        dtype: `FLOAT32` or `INT64`.
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
        nodes: The nodes, encoded by `node`, in an executable order.
        weights: Constants by name, float32 or int64.
    """
    graph = b"".join(_bytes(1, each) for each in nodes) + _bytes(2, name)
    graph += b"".join(_bytes(5, _initializer(each, values)) for each, values in weights.items())
    graph += b"".join(_bytes(11, _value_info(each)) for each in inputs)
    graph += b"".join(_bytes(12, _value_info(each)) for each in outputs)
    opset = _number(2, _OPSET_VERSION)
    return _number(1, _IR_VERSION) + _bytes(2, "stoker_bench") + _bytes(7, graph) + _bytes(8, opset)


WIDTHS = (784, 300, 100, 10)
INPUT_NAME = "images"
OUTPUT_NAME = "logits"


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


def _model(mlp: Mlp) -> bytes:
    nodes: list[bytes] = []
    weights: dict[str, NDArray[np.float32]] = {}
    source, last = INPUT_NAME, len(mlp.weights) - 1
    for layer, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
        weights |= {f"weight{layer}": weight, f"bias{layer}": bias}
        output = OUTPUT_NAME if layer == last else f"sum{layer}"
        nodes.append(node("Gemm", [source, f"weight{layer}", f"bias{layer}"], output))
        if layer != last:
            source = f"active{layer}"
            nodes.append(node("Relu", [output], source))
    inputs = [Tensor(INPUT_NAME, FLOAT32, ("rows", mlp.weights[0].shape[0]))]
    outputs = [Tensor(OUTPUT_NAME, FLOAT32, ("rows", mlp.weights[-1].shape[1]))]
    return model_bytes("mlp", nodes, weights, inputs, outputs)


IMAGE_SHAPE: Final = (3, 224, 224)
TOKEN_SHAPE: Final = (128,)

_VOCABULARY: Final = 30_000
# Between these pixels an image is smooth, as photographs are; noise would take a decoder several times as long.
_SEEN_EVERY: Final = 4
_QUALITY: Final = 90


def write_averages() -> bytes:
    """Return an ONNX model of images, float32 [rows, 3, 224, 224], that gives the mean of each channel."""
    nodes = [node("GlobalAveragePool", ["image"], "pooled"), node("Flatten", ["pooled"], "averages")]
    inputs = [Tensor("image", FLOAT32, ("rows", *IMAGE_SHAPE))]
    return model_bytes("averages", nodes, {}, inputs, [Tensor("averages", FLOAT32, ("rows", 3))])


def write_sums() -> bytes:
    """Return an ONNX model of token ids and a mask, int64 [rows, tokens] each, whose unmasked ones it sums up."""
    names = ("input_ids", "attention_mask")
    nodes = [node("Mul", names, "unmasked"), node("ReduceSum", ["unmasked", "axes"], "sums")]
    inputs = [Tensor(name, INT64, ("rows", "tokens")) for name in names]
    return model_bytes("sums", nodes, {"axes": np.array([1])}, inputs, [Tensor("sums", INT64, ("rows", 1))])


def jpeg(rows: NDArray[np.float32]) -> bytes:
    """Make a JPEG of one row [1, 3, 224, 224] of numbers in [0, 1)."""
    from PIL import Image

    seen = (rows[0, :, ::_SEEN_EVERY, ::_SEEN_EVERY].transpose(1, 2, 0) * 255).astype(np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(seen).resize(IMAGE_SHAPE[:0:-1], Image.Resampling.BICUBIC).save(
        encoded, "JPEG", quality=_QUALITY
    )
    return encoded.getvalue()


def averages(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the model's outputs for the JPEG of a row, float32 [1, 3]."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(jpeg(rows))), np.float64)
    means: NDArray[np.float32] = (pixels / 255).mean(axis=(0, 1))[None].astype(np.float32)
    return means


def _ids(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    return (rows * _VOCABULARY).astype(np.int64)


def tokens_json(rows: NDArray[np.float32]) -> bytes:
    """Return the body of a request in the Azure form with the token ids of rows [n, tokens], and their mask."""
    ids = _ids(rows)
    data: dict[str, Any] = {"input_ids": ids.tolist(), "attention_mask": np.ones_like(ids).tolist()}
    return json.dumps({"data": data}, separators=(",", ":")).encode()


def sums(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the model's outputs for the tokens of rows [n, tokens], [n, 1]; exact up to 2^24."""
    summed: NDArray[np.float32] = _ids(rows).sum(axis=1, keepdims=True).astype(np.float32)
    return summed
