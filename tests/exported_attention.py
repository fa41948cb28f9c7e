"""Graphs with attention, as PyTorch's exporters write it: with sizes computed from shapes, or with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS_TIME = 6
WIDTH, HEADS = 8, 2
SIZE = WIDTH // HEADS
FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class Form:
    """One way to write attention.

    Attributes:
        qkv: One product for query, keys and values, or three.
        sizes: Numbers in reshapes, or sizes computed from shapes.
        keys: How keys are transposed: with the heads, after them, or as matrices.
        scale: The scores multiplied or divided, query and keys multiplied each, or nothing.
        mask: A mask of the keys `[rows, keys]` as an input, a constant bias `[heads, time, keys]`, both, or none.
        time: The length of a sequence; 0 for a free one.
        gelu: Whether the newer exporter's GELU follows.
    """

    qkv: Literal["packed", "split"] = "split"
    sizes: Literal["numbers", "shapes"] = "numbers"
    keys: Literal["at once", "after", "matrices"] = "at once"
    scale: Literal["scores", "divided", "both", "none"] = "scores"
    mask: Literal["keys", "bias", "both", "none"] = "none"
    time: int = ROWS_TIME
    gelu: bool = False


class _Writer:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def add(
        self, operator: str, inputs: list[str], output: str = "", count: int = 1, **attributes: object
    ) -> str:
        output = output or f"t{len(self.nodes)}"
        outputs = [output] if count == 1 else [f"{output}_{index}" for index in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return output

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(value, dtype)
        return name


def write_attention(path: Path, form: Form) -> Path:
    """Write `float32[rows, time, 8]` -> `float32[rows, time, 8]`, with `mask` float32[rows, time] if there is one."""
    writer = _Writer()
    random = np.random.default_rng(4)
    add, constant = writer.add, writer.constant
    time: int | str = form.time or "time"
    query, keys, values = _heads(writer, form, random)
    if form.scale == "both":
        root = constant([SIZE**-0.25], np.float32)
        query, keys = add("Mul", [query, root]), add("Mul", [root, keys])
    scores = add("MatMul", [query, keys])
    if form.scale == "scores":
        scores = add("Mul", [scores, constant(0.3, np.float32)])
    elif form.scale == "divided":
        # From the shape of the rows, as `math.sqrt(query.size(-1))` is exported.
        width = add("Gather", [add("Shape", ["x"]), constant(2)], axis=0)
        size = add("Cast", [add("Div", [width, constant(HEADS)])], to=FLOAT)
        scores = add("Div", [scores, add("Sqrt", [size])])
    if form.mask in ("keys", "both"):
        wide = add("Unsqueeze", ["mask", constant([1, 2])])
        absent = add("Sub", [constant(1.0, np.float32), wide])
        scores = add("Add", [scores, add("Mul", [absent, constant(-1e4, np.float32)])])
    if form.mask in ("bias", "both"):
        bias = random.standard_normal((HEADS, form.time, form.time))
        scores = add("Add", [constant(bias, np.float32), scores])
    attended = add("MatMul", [add("Softmax", [scores], axis=-1), values])
    joined = add("Transpose", [attended], perm=[0, 2, 1, 3])
    flat = add("Reshape", [joined, constant([0, 0, WIDTH])])
    if form.gelu:
        erf = add("Erf", [add("Div", [flat, constant(2**0.5, np.float32)])])
        half = add("Mul", [constant(0.5, np.float32), add("Add", [erf, constant(1.0, np.float32)])])
        flat = add("Mul", [flat, half])
    add("MatMul", [flat, constant(random.standard_normal((WIDTH, WIDTH)), np.float32)], "y")
    inputs = [("x", ["rows", time, WIDTH])] + [("mask", ["rows", time])] * (form.mask in ("keys", "both"))
    return save(path, writer.nodes, inputs, [("y", ["rows", time, WIDTH])], writer.constants)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, list[int | str]]],
    outputs: list[tuple[str, list[int | str]]],
    constants: dict[str, np.ndarray],
) -> Path:
    """Write a model of float32 tensors."""
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _heads(writer: _Writer, form: Form, random: np.random.Generator) -> tuple[str, str, str]:
    """Query and values `[rows, heads, time, size]`, and keys `[rows, heads, size, time]`."""
    add, constant = writer.add, writer.constant

    def linear(width: int) -> str:
        weights = constant(random.standard_normal((WIDTH, width)), np.float32)
        return add(
            "Add", [add("MatMul", ["x", weights]), constant(random.standard_normal(width), np.float32)]
        )

    if form.qkv == "packed":
        parted = add("Reshape", [linear(3 * WIDTH), constant([0, 0, 3, HEADS, SIZE])])
        turned = add("Transpose", [parted], perm=[2, 0, 3, 1, 4])
        query, keys, values = (add("Gather", [turned, constant(index)], axis=0) for index in range(3))
        return query, add("Transpose", [keys], perm=[0, 1, 3, 2]), values
    apart = [add("Reshape", [linear(WIDTH), _shape(writer, form)]) for _ in range(3)]
    query, values = (add("Transpose", [apart[index]], perm=[0, 2, 1, 3]) for index in (0, 2))
    if form.keys == "at once":
        return query, add("Transpose", [apart[1]], perm=[0, 2, 3, 1]), values
    keys = add("Transpose", [apart[1]], perm=[0, 2, 1, 3])
    if form.keys == "after":
        return query, add("Transpose", [keys], perm=[0, 1, 3, 2]), values
    matrices = add("Transpose", [add("Reshape", [keys, constant([-1, form.time, SIZE])])], perm=[0, 2, 1])
    return query, add("Reshape", [matrices, constant([-1, HEADS, SIZE, form.time])]), values


def _shape(writer: _Writer, form: Form) -> str:
    add, constant = writer.add, writer.constant
    if form.sizes == "numbers":
        return constant([0, 0, HEADS, SIZE])
    shape = add("Shape", ["x"])
    rows, time, width = (add("Gather", [shape, constant([axis])], axis=0) for axis in range(3))
    return add("Concat", [rows, time, constant([HEADS]), add("Div", [width, constant([HEADS])])], axis=0)
