"""A zoo of ONNX models whose rows see each other, and beside each one its twin whose rows do not.

A twin is as like its sibling as can be: the same operators over another axis, or of constants. Models take float32
`x` of [rows, 4] and give float32 `y` of [rows, ...], but for those that are about other tensors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)

__all__ = ["WIDTH", "ZOO", "classifier", "graph_of", "model_of", "node"]

WIDTH = 4
"""Numbers in a row of `x`."""
_HIDDEN = 8

Make = Callable[[], bytes]
Value = onnx.ValueInfoProto


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """One node, with its tensors' names in one string; it is named for its operator and first output."""
    names = outputs.split()
    return helper.make_node(operator, inputs.split(), names, f"/{names[0]}/{operator}", **attributes)


def graph_of(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Any] | None = None,
    taken: Sequence[Value] | None = None,
    given: Sequence[Value] | None = None,
) -> onnx.GraphProto:
    """A graph of `x` to `y`, whose ranks are declared unless other tensors are."""
    return helper.make_graph(
        list(nodes),
        "zoo",
        taken if taken is not None else [tensor("x", "rows", WIDTH)],
        given if given is not None else [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )


def model_of(graph: onnx.GraphProto, opset: int = 17, **domains: int) -> bytes:
    """A model of this graph; `domains` are versions of `ml` (ai.onnx.ml) and `microsoft` (com.microsoft)."""
    names = {"ml": "ai.onnx.ml", "microsoft": "com.microsoft"}
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(names[domain], version) for domain, version in domains.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def tensor(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> Value:
    """The description of a tensor; `rows` is the batch."""
    return helper.make_tensor_value_info(name, dtype, shape)


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _mlp() -> bytes:
    """A perceptron of one hidden layer, in float32."""
    nodes = [
        node("MatMul", "x w1", "s1"),
        node("Add", "s1 b1", "h1"),
        node("Relu", "h1", "r1"),
        node("MatMul", "r1 w2", "s2"),
        node("Add", "s2 b2", "y"),
    ]
    constants = {
        "w1": _random(WIDTH, _HIDDEN),
        "b1": _random(_HIDDEN),
        "w2": _random(_HIDDEN, 3),
        "b2": _random(3),
    }
    return model_of(graph_of(nodes, constants, given=[tensor("y", "rows", 3)]))


class _Rows(CalibrationDataReader):
    def __init__(self) -> None:
        self._rows: Iterator[dict[str, np.ndarray]] = iter([{"x": _random(16, WIDTH)}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rows, None)


def _quantised(quantise: Callable[[Path, Path], None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        original, quantised = Path(folder) / "original.onnx", Path(folder) / "quantised.onnx"
        original.write_bytes(_mlp())
        quantise(original, quantised)
        return quantised.read_bytes()


def dynamic_int8() -> bytes:
    """A perceptron by `quantize_dynamic`: the scale of each activation comes from the whole batch."""
    return _quantised(quantize_dynamic)


def static_int8() -> bytes:
    """The same by `quantize_static`: scales are constants."""

    def quantise(original: Path, quantised: Path) -> None:
        quantize_static(original, quantised, _Rows(), quant_format=QuantFormat.QDQ)

    return _quantised(quantise)


def static_int8_operators() -> bytes:
    """The same with operators of integers in place of pairs of QuantizeLinear and DequantizeLinear."""

    def quantise(original: Path, quantised: Path) -> None:
        quantize_static(original, quantised, _Rows(), quant_format=QuantFormat.QOperator)

    return _quantised(quantise)


def _dynamic_by_hand() -> bytes:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"),
        node("MatMulInteger", "q w zero", "sums"),
        node("Cast", "sums", "floats", to=TensorProto.FLOAT),
        node("Mul", "floats scale", "y"),
    ]
    return model_of(graph_of(nodes, {"w": np.arange(WIDTH * 3, dtype=np.uint8).reshape(WIDTH, 3)}))


def _static_by_hand() -> bytes:
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("MatMulInteger", "q w zero", "sums"),
        node("Cast", "sums", "floats", to=TensorProto.FLOAT),
        node("Mul", "floats scale", "y"),
    ]
    constants = {
        "w": np.arange(WIDTH * 3, dtype=np.uint8).reshape(WIDTH, 3),
        "scale": np.float32(0.02),
        "zero": np.uint8(128),
    }
    return model_of(graph_of(nodes, constants))


def _mean(axis: int) -> bytes:
    nodes = [
        node("ReduceMean", "x", "mean", axes=[axis], keepdims=1),
        node("Mul", "mean small", "little"),
        node("Add", "x little", "y"),
    ]
    return model_of(graph_of(nodes, {"small": np.float32(1e-3)}))


def _branch(condition: Sequence[onnx.NodeProto], constants: dict[str, Any]) -> bytes:
    """`x` times 2 or 3, as `positive` says."""
    branches = {
        name: helper.make_graph(
            [node("Mul", f"x {factor}", f"{factor}_x")],
            name,
            [],
            [helper.make_tensor_value_info(f"{factor}_x", TensorProto.FLOAT, None)],
        )
        for name, factor in (("then_branch", "two"), ("else_branch", "three"))
    }
    nodes = [*condition, node("If", "positive", "y", **branches)]
    factors = {"two": np.float32(2), "three": np.float32(3), "zero": np.float32(0)}
    return model_of(graph_of(nodes, {**factors, **constants}))


def _if_on_the_sum() -> bytes:
    return _branch(
        [node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum zero", "positive")],
        {},
    )


def _if_on_a_constant() -> bytes:
    return _branch(
        [node("ReduceSum", "weights", "sum", keepdims=0), node("Greater", "sum zero", "positive")],
        {"weights": np.ones(3, np.float32)},
    )


def _loop(nodes_of_count: Sequence[onnx.NodeProto], constants: dict[str, Any]) -> bytes:
    """`x` doubled `count` times."""
    body = helper.make_graph(
        [node("Identity", "go", "still"), node("Add", "state state", "doubled")],
        "body",
        [
            tensor("turn", dtype=TensorProto.INT64),
            tensor("go", dtype=TensorProto.BOOL),
            tensor("state", "rows", WIDTH),
        ],
        [tensor("still", dtype=TensorProto.BOOL), tensor("doubled", "rows", WIDTH)],
    )
    nodes = [*nodes_of_count, helper.make_node("Loop", ["count", "", "x"], ["y"], "/y/Loop", body=body)]
    return model_of(graph_of(nodes, constants))


def _loop_of_rows() -> bytes:
    nodes = [
        node("ReduceMax", "x", "largest", keepdims=0),
        node("Clip", "largest low high", "bounded"),
        node("Cast", "bounded", "count", to=TensorProto.INT64),
    ]
    return _loop(nodes, {"low": np.float32(0), "high": np.float32(5)})


def _loop_of_three() -> bytes:
    return _loop([], {"count": np.int64(3)})


def _scan(axis: int) -> bytes:
    """The running sum over an axis of `x`, by Scan."""
    body = helper.make_graph(
        [node("Add", "sum element", "next_sum"), node("Identity", "next_sum", "part")],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("sum", "element")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("next_sum", "part")],
    )
    zeros = [node("Gather", "x first", "one", axis=axis), node("Sub", "one one", "start")]
    scan = node(
        "Scan",
        "start x",
        "last y",
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
    )
    return model_of(graph_of([*zeros, scan], {"first": np.int64(0)}))


def _cumsum(axis: int) -> bytes:
    return model_of(graph_of([node("CumSum", "x axis", "y")], {"axis": np.int64(axis)}))


def _unique() -> bytes:
    nodes = [
        node("Unique", "x", "values firsts places"),
        node("Shape", "x", "shape"),
        node("Reshape", "places shape", "integers"),
        node("Cast", "integers", "y", to=TensorProto.FLOAT),
    ]
    return model_of(graph_of(nodes))


def _unique_constant() -> bytes:
    nodes = [
        node("Unique", "weights", "values"),
        node("ReduceSum", "values", "sum", keepdims=0),
        node("Mul", "x sum", "y"),
    ]
    return model_of(graph_of(nodes, {"weights": np.array([1, 2, 2, 3], np.float32)}))


def _batch_norm(training: int) -> bytes:
    statistics = {name: np.ones(WIDTH, np.float32) for name in ("scale", "bias", "mean", "variance")}
    outputs = "y new_mean new_variance" if training else "y"
    nodes = [node("BatchNormalization", "x scale bias mean variance", outputs, training_mode=training)]
    return model_of(graph_of(nodes, statistics))


def _recurrent(operator: str, gates: int, *, over_rows: bool) -> bytes:
    """Over the rows, each a step of one sequence; or over 3 steps of each row."""
    constants: dict[str, Any] = {
        "w": _random(1, gates * _HIDDEN, WIDTH),
        "r": _random(1, gates * _HIDDEN, _HIDDEN),
        "one": np.array([1], np.int64),
        "zero": np.array([0], np.int64),
    }
    if over_rows:
        nodes = [
            node("Unsqueeze", "x one", "sequence"),
            node(operator, "sequence w r", "all", hidden_size=_HIDDEN),
            node("Squeeze", "all one", "states"),
            node("Squeeze", "states one", "y"),
        ]
        return model_of(graph_of(nodes, constants))
    nodes = [
        node("Transpose", "x", "sequence", perm=[1, 0, 2]),
        helper.make_node(
            operator, ["sequence", "w", "r"], ["", "last"], f"/last/{operator}", hidden_size=_HIDDEN
        ),
        node("Squeeze", "last zero", "y"),
    ]
    return model_of(graph_of(nodes, constants, [tensor("x", "rows", 3, WIDTH)]))


def _softmax(axis: int, opset: int = 17) -> bytes:
    return model_of(graph_of([node("Softmax", "x", "y", axis=axis)]), opset)


def _topk(axis: int) -> bytes:
    nodes = [
        node("TopK", "x one", "largest places", axis=axis),
        node("Sub", "x largest", "y"),
    ]
    return model_of(graph_of(nodes, {"one": np.array([1], np.int64)}))


def _reversed(axis: int) -> bytes:
    """The first half of the numbers turned round and themselves: the numbers turned round."""
    nodes = [
        node("Slice", "x last first axes back", "turned"),
        node("Concat", "turned x", "both", axis=axis),
        node("Shape", "x", "shape"),
        node("Slice", "both zeros shape", "y"),
    ]
    constants = {
        "last": np.array([-1], np.int64),
        "first": np.array([np.iinfo(np.int64).min], np.int64),
        "axes": np.array([axis], np.int64),
        "back": np.array([-1], np.int64),
        "zeros": np.array([0, 0], np.int64),
    }
    return model_of(graph_of(nodes, constants))


def _concat_along_the_batch() -> bytes:
    """Each row less the one behind it, found in `x` behind itself."""
    nodes = [
        node("Concat", "x x", "both", axis=0),
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "rows"),
        node("Add", "rows one", "end"),
        node("Slice", "both one end", "shifted"),
        node("Sub", "x shifted", "y"),
    ]
    constants = {"one": np.array([1], np.int64), "zero": np.array([0], np.int64)}
    return model_of(graph_of(nodes, constants))


def _concat_along_the_row() -> bytes:
    return model_of(graph_of([node("Concat", "x x", "y", axis=1)]))


def _matmul_with_itself(*, over_rows: bool) -> bytes:
    """Attention of rows to each other, or of the 3 words of each row."""
    if over_rows:
        nodes = [
            node("Transpose", "x", "columns", perm=[1, 0]),
            node("MatMul", "x columns", "scores"),
            node("Softmax", "scores", "weights", axis=-1),
            node("MatMul", "weights x", "y"),
        ]
        return model_of(graph_of(nodes))
    nodes = [
        node("Transpose", "x", "columns", perm=[0, 2, 1]),
        node("MatMul", "x columns", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights x", "y"),
    ]
    return model_of(graph_of(nodes, None, [tensor("x", "rows", 3, WIDTH)]))


def _einsum(equation: str) -> bytes:
    return model_of(graph_of([node("Einsum", "x x x", "y", equation=equation)]))


def _softmax_of_reshaped(sizes: Sequence[int]) -> bytes:
    """A softmax over what a reshape has made one row."""
    nodes = [
        node("Reshape", "x other", "reshaped"),
        node("Softmax", "reshaped", "weights", axis=-1),
        node("Shape", "x", "shape"),
        node("Reshape", "weights shape", "y"),
    ]
    return model_of(graph_of(nodes, {"other": np.array(sizes, np.int64)}))


def _pool(*, over_rows: bool) -> bytes:
    """Means of neighbours in a picture of one channel: of all rows, or of one row each."""
    nodes = [
        node("Unsqueeze", "x axes", "picture"),
        node("AveragePool", "picture", "means", kernel_shape=[3, 1] if over_rows else [1, 3]),
        node("Pad", "means room", "padded"),
        node("Squeeze", "padded axes", "y"),
    ]
    room = [0, 0, 1, 0, 0, 0, 1, 0] if over_rows else [0] * 8
    constants = {
        "axes": np.array([0, 1] if over_rows else [1, 2], np.int64),
        "room": np.array(room, np.int64),
    }
    return model_of(graph_of(nodes, constants))


def _mean_and_variance(axes: Sequence[int]) -> bytes:
    return model_of(graph_of([node("MeanVarianceNormalization", "x", "y", axes=axes)]))


def _longest(*, of_the_batch: bool) -> bytes:
    """How much of a mask of lengths is set; the mask is as long as the longest of the batch, or as 7."""
    longest = node("ReduceMax", "bounded", "width", keepdims=0)
    nodes = [
        node("ReduceMax", "x", "largest", axes=[1], keepdims=1),
        node("Clip", "largest one seven", "clipped"),
        node("Cast", "clipped", "bounded", to=TensorProto.INT64),
        longest if of_the_batch else node("Identity", "fixed", "width"),
        node("Range", "zero width step", "places"),
        node("Less", "places bounded", "mask"),
        node("Cast", "mask", "set", to=TensorProto.FLOAT),
        node("ReduceMean", "set", "y", axes=[1]),
    ]
    constants = {
        "one": np.float32(1),
        "seven": np.float32(7),
        "fixed": np.int64(7),
        "zero": np.int64(0),
        "step": np.int64(1),
    }
    return model_of(graph_of(nodes, constants))


def _split_text(output: str) -> bytes:
    """Words of texts, which are padded to the most words of the batch; or how many they are."""
    kind = TensorProto.STRING if output == "words" else TensorProto.INT64
    nodes = [node("StringSplit", "x", "words count", delimiter=" ")]
    taken = [tensor("x", "rows", dtype=TensorProto.STRING)]
    return model_of(
        graph_of(nodes, None, taken, [helper.make_tensor_value_info(output, kind, None)]), opset=20
    )


ZOO: dict[str, tuple[Make, Make]] = {
    "dynamic int8": (dynamic_int8, static_int8),
    "dynamic int8 by hand": (_dynamic_by_hand, _static_by_hand),
    "mean × 1e-3": (lambda: _mean(0), lambda: _mean(1)),
    "condition": (_if_on_the_sum, _if_on_a_constant),
    "trip count": (_loop_of_rows, _loop_of_three),
    "scan": (lambda: _scan(0), lambda: _scan(1)),
    "cumsum": (lambda: _cumsum(0), lambda: _cumsum(1)),
    "unique": (_unique, _unique_constant),
    "training batch norm": (lambda: _batch_norm(1), lambda: _batch_norm(0)),
    "gru": (
        lambda: _recurrent("GRU", 3, over_rows=True),
        lambda: _recurrent("GRU", 3, over_rows=False),
    ),
    "lstm": (
        lambda: _recurrent("LSTM", 4, over_rows=True),
        lambda: _recurrent("LSTM", 4, over_rows=False),
    ),
    "softmax": (lambda: _softmax(0), lambda: _softmax(1)),
    "softmax of opset 11": (lambda: _softmax(0, 11), lambda: _softmax(1, 11)),
    "topk": (lambda: _topk(0), lambda: _topk(1)),
    "reversed": (lambda: _reversed(0), lambda: _reversed(1)),
    "concat": (_concat_along_the_batch, _concat_along_the_row),
    "attention": (
        lambda: _matmul_with_itself(over_rows=True),
        lambda: _matmul_with_itself(over_rows=False),
    ),
    "einsum": (lambda: _einsum("ij,kj,kl->il"), lambda: _einsum("ij,ij,ik->ik")),
    "reshape": (lambda: _softmax_of_reshaped([1, -1]), lambda: _softmax_of_reshaped([-1, 2])),
    "pool": (lambda: _pool(over_rows=True), lambda: _pool(over_rows=False)),
    "mean and variance": (lambda: _mean_and_variance([0]), lambda: _mean_and_variance([1])),
    "mask of the longest": (lambda: _longest(of_the_batch=True), lambda: _longest(of_the_batch=False)),
    "padding to the longest": (lambda: _split_text("words"), lambda: _split_text("count")),
}
"""By what they do: a maker of a model whose rows see each other, and one of its twin; both give the file's bytes."""


def classifier(classes: tuple[Any, ...], *, alone: bool = False) -> bytes:
    """A converted classifier: the class of each row, unless scores stand alone, and the scores by class."""
    words = isinstance(classes[0], str)
    key = TensorProto.STRING if words else TensorProto.INT64
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            "linear",
            domain="ai.onnx.ml",
            coefficients=np.eye(3, 4).reshape(-1).tolist(),
            intercepts=[0.0, 0.5, 1.0],
            **{"classlabels_strings" if words else "classlabels_ints": classes},
        ),
        helper.make_node(
            "ZipMap",
            ["scores"],
            ["probabilities"],
            "zip",
            domain="ai.onnx.ml",
            **{"classlabels_strings" if words else "classlabels_int64s": classes},
        ),
    ]
    maps = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    scores = helper.make_value_info("probabilities", helper.make_sequence_type_proto(maps))
    label = [] if alone else [tensor("label", "rows", dtype=key)]
    return model_of(graph_of(nodes, given=[*label, scores]), ml=1)
