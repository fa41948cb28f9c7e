"""Operators of ONNX as small models: what is read of them has to be what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.zoo import node

from stoker.isolation.onnx.operator_rules import MICROSOFT, ML

__all__ = ["OPERATORS", "ROWS", "WEIGHTS", "one", "vector"]

ROWS = 3


def one(operator: str, inputs: str = "x", outputs: str = "y", **attributes: Any) -> list[onnx.NodeProto]:
    return [node(operator, inputs, outputs, **attributes)]


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.int64)


WEIGHTS = np.random.default_rng(3).standard_normal((4, 4)).astype(np.float32)
OPERATORS: dict[str, tuple[list[onnx.NodeProto], tuple[int, ...], dict[str, Any]]] = {
    "Relu": (one("Relu"), (2, 4), {}),
    "Add of a constant": (one("Add", "x c"), (2, 4), {"c": WEIGHTS[0]}),
    "Add of a column": (one("Add", "x c"), (4,), {"c": WEIGHTS[:3, :1]}),
    "Sub of itself turned": ([*one("Transpose", "x", "t"), *one("Sub", "x t")], (ROWS,), {}),
    "MatMul": (one("MatMul", "x w"), (4, 4), {"w": WEIGHTS}),
    "MatMul from the left": (one("MatMul", "w x"), (4, 4), {"w": WEIGHTS}),
    "MatMul of a vector": (one("MatMul", "x w"), (4, 4), {"w": WEIGHTS[0]}),
    "Gemm": (one("Gemm", "x w c"), (4,), {"w": WEIGHTS, "c": WEIGHTS[0]}),
    "Gemm turned": (one("Gemm", "x w", transA=1), (3,), {"w": WEIGHTS[:3]}),
    "Softmax": (one("Softmax", axis=1), (2, 4), {}),
    "LogSoftmax of the last": (one("LogSoftmax"), (2, 4), {}),
    "ReduceMean": (one("ReduceMean", axes=[1], keepdims=0), (2, 4), {}),
    "ReduceSum": (one("ReduceSum", "x a", keepdims=0), (2, 4), {"a": vector(-1)}),
    "ReduceSum of no axis": (one("ReduceSum", "x a", noop_with_empty_axes=1), (2, 4), {"a": vector()}),
    "ReduceMax of all": (one("ReduceMax", keepdims=0), (2, 4), {}),
    "ArgMax": (one("ArgMax", axis=1, keepdims=0), (2, 4), {}),
    "TopK": (one("TopK", "x k", "y places", axis=1), (2, 4), {"k": vector(2)}),
    "CumSum": (one("CumSum", "x a"), (2, 4), {"a": np.int64(1)}),
    "Concat": (one("Concat", "x x", axis=1), (2, 4), {}),
    "Split": (one("Split", "x", "y z", axis=2), (2, 4), {}),
    "Slice": (one("Slice", "x s e a"), (2, 4), {"s": vector(1), "e": vector(3), "a": vector(2)}),
    "Slice to the end": (
        one("Slice", "x s e a"),
        (2, 4),
        {"s": vector(0), "e": vector(10**9), "a": vector(1)},
    ),
    "Gather": (one("Gather", "x i", axis=1), (2, 4), {"i": vector(1, 0, 1)}),
    "Gather of one": (one("Gather", "x i", axis=2), (2, 4), {"i": np.int64(1)}),
    "Gather from a table": (
        [*one("Cast", "x", "i", to=TensorProto.INT64), *one("Gather", "w i")],
        (2,),
        {"w": np.concatenate([WEIGHTS] * 50)},
    ),
    "GatherElements": (one("GatherElements", "x i", axis=0), (4,), {"i": np.array([[0, 1, 0, 1]])}),
    "Transpose": (one("Transpose", perm=[2, 0, 1]), (2, 4), {}),
    "Reshape of the tail": (one("Reshape", "x s"), (2, 4), {"s": vector(0, -1)}),
    "Reshape to more rows": (one("Reshape", "x s"), (2, 4), {"s": vector(-1, 4)}),
    "Reshape to half rows": (
        [*one("Reshape", "x s", "r"), *one("Softmax", "r")],
        (6, 2),
        {"s": vector(-1, 3)},
    ),
    "Reshape across rows": (one("Reshape", "x s"), (3, 2), {"s": vector(-1, 9)}),
    "Reshape to one": (one("Reshape", "x s"), (2, 4), {"s": vector(1, -1)}),
    "Flatten": (one("Flatten", axis=1), (2, 4), {}),
    "Flatten further": (one("Flatten", axis=2), (2, 4), {}),
    "Squeeze": ([*one("Unsqueeze", "x a", "u"), *one("Squeeze", "u a")], (2, 4), {"a": vector(1)}),
    "Expand": (one("Expand", "x s"), (1, 4), {"s": vector(1, 5, 4)}),
    "Tile": (one("Tile", "x r"), (2, 4), {"r": vector(1, 3, 1)}),
    "Pad": (one("Pad", "x p"), (2, 4), {"p": vector(0, 1, 0, 0, 0, 2)}),
    "Conv": (one("Conv", "x w", pads=[1, 1]), (4, 5), {"w": np.stack([WEIGHTS] * 3, 2)[:, :, :3]}),
    "MaxPool": (one("MaxPool", kernel_shape=[2]), (2, 4), {}),
    "GlobalAveragePool": (one("GlobalAveragePool"), (2, 4), {}),
    "InstanceNormalization": (
        one("InstanceNormalization", "x c c"),
        (3, 4),
        {"c": np.ones(3, np.float32)},
    ),
    "LayerNormalization": (one("LayerNormalization", "x c"), (2, 4), {"c": WEIGHTS[0]}),
    "LayerNormalization of two": (
        one("LayerNormalization", "x c", axis=1),
        (2, 4),
        {"c": WEIGHTS[:2]},
    ),
    "BatchNormalization": (one("BatchNormalization", "x c c c c"), (3, 4), {"c": np.ones(3, np.float32)}),
    "MeanVarianceNormalization": (one("MeanVarianceNormalization"), (2, 4, 3), {}),
    "LpNormalization": (one("LpNormalization", axis=1), (2, 4), {}),
    "QuantizeLinear": (one("QuantizeLinear", "x s z"), (2, 4), {"s": np.float32(0.1), "z": np.uint8(9)}),
    "QuantizeLinear by axis": (
        one("QuantizeLinear", "x s z", axis=1),
        (3, 4),
        {"s": WEIGHTS[0, :3] ** 2, "z": np.zeros(3, np.uint8)},
    ),
    "DynamicQuantizeLinear": (one("DynamicQuantizeLinear", "x", "y s z"), (4,), {}),
    "Einsum": (one("Einsum", "x w", equation="abc,cd->abd"), (2, 4), {"w": WEIGHTS}),
    "Trilu": (one("Trilu"), (3, 4), {}),
    "OneHot": (
        [*one("Cast", "x", "i", to=TensorProto.INT64), *one("OneHot", "i d v", axis=1)],
        (2,),
        {"d": np.int64(3), "v": np.array([0, 1], np.float32)},
    ),
    "Where": ([*one("Greater", "x c", "b"), *one("Where", "b x c")], (2, 4), {"c": np.float32(0)}),
    "NonZero": (one("NonZero"), (4,), {}),
    "Compress": (one("Compress", "x c", axis=1), (3, 4), {"c": np.array([True, False, True])}),
    "Number of rows": (
        [
            *one("Shape", "x", "s"),
            *one("Cast", "s", "f", to=1),
            *one("ReduceSum", "f", "n", keepdims=0),
            *one("Mul", "x n"),
        ],
        (4,),
        {},
    ),
    "Shape of the rows": (
        [*one("Shape", "x", "s"), *one("ConstantOfShape", "s", "o"), *one("Add", "x o")],
        (2, 4),
        {},
    ),
    "Resize": (
        [helper.make_node("Resize", ["x", "", "s"], ["y"])],
        (2, 4),
        {"s": np.array([1, 1, 2], np.float32)},
    ),
    "DepthToSpace": (one("DepthToSpace", blocksize=2), (4, 2, 2), {}),
    "LRN": (one("LRN", size=3), (3, 4, 2), {}),
    "Dropout": (one("Dropout"), (2, 4), {}),
    "GRU": (
        one("GRU", "x w r", "every y", hidden_size=4),
        (3, 4),
        {"w": np.stack([WEIGHTS] * 3).reshape(1, 12, 4), "r": np.stack([WEIGHTS] * 3).reshape(1, 12, 4)},
    ),
    "FusedMatMul": (one("FusedMatMul", "x w", alpha=0.5, domain=MICROSOFT), (2, 4), {"w": WEIGHTS}),
    "SkipLayerNormalization": (
        one("SkipLayerNormalization", "x x c c", domain=MICROSOFT),
        (3, 4),
        {"c": WEIGHTS[0]},
    ),
    "MultiHeadAttention": (
        one("MultiHeadAttention", "x x x", num_heads=2, domain=MICROSOFT),
        (3, 4),
        {},
    ),
    "Attention": (
        one("Attention", "x w c", num_heads=2, domain=MICROSOFT),
        (3, 4),
        {"w": np.tile(WEIGHTS, 3), "c": np.tile(WEIGHTS[0], 3)},
    ),
    "MatMulNBits": (
        one("MatMulNBits", "x w c", K=32, N=4, bits=4, block_size=32, accuracy_level=4, domain=MICROSOFT),
        (32,),
        {"w": np.arange(64, dtype=np.uint8).reshape(4, 1, 16), "c": WEIGHTS[0]},
    ),
    "DynamicQuantizeMatMul": (
        one("DynamicQuantizeMatMul", "x w s", domain=MICROSOFT),
        (4,),
        {"w": np.arange(16, dtype=np.uint8).reshape(4, 4), "s": np.float32(0.1)},
    ),
    "LinearRegressor": (
        one("LinearRegressor", coefficients=[1.0, 2.0, 3.0, 4.0], domain=ML),
        (4,),
        {},
    ),
    "Normalizer": (one("Normalizer", norm="MAX", domain=ML), (4,), {}),
    # Images.
    "Conv, the same size": (
        one("Conv", "x w", auto_pad="SAME_UPPER", strides=[2]),
        (4, 5),
        {"w": np.stack([WEIGHTS] * 3, 2)[:, :, :3]},
    ),
    "Conv, dilated": (
        one("Conv", "x w", auto_pad="VALID", dilations=[2]),
        (4, 7),
        {"w": np.stack([WEIGHTS] * 3, 2)[:, :, :3]},
    ),
    "ConvTranspose": (
        one("ConvTranspose", "x w", strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[0, 1], group=2),
        (4, 3, 2),
        {"w": np.stack([WEIGHTS] * 3, 2)[..., None].repeat(2, 3)},
    ),
    "ConvTranspose, the same size": (
        one("ConvTranspose", "x w", strides=[2], auto_pad="SAME_LOWER"),
        (4, 3),
        {"w": np.stack([WEIGHTS] * 3, 2)},
    ),
    "QLinearConv": (
        [
            *one("QuantizeLinear", "x s z", "q"),
            *one("QLinearConv", "q s z w s z s z", "r", pads=[1, 0]),
            *one("DequantizeLinear", "r s z"),
        ],
        (4, 5),
        {
            "s": np.float32(0.1),
            "z": np.uint8(9),
            "w": np.arange(48, dtype=np.uint8).reshape(4, 4, 3),
        },
    ),
    "ConvInteger": (
        [
            *one("DynamicQuantizeLinear", "x", "q s z"),
            *one("QuantizeLinear", "x one nine", "p"),
            *one("ConvInteger", "p w", "n"),
            *one("Cast", "n", "y", to=1),
        ],
        (4, 5),
        {
            "one": np.float32(1),
            "nine": np.uint8(9),
            "w": np.arange(48, dtype=np.uint8).reshape(4, 4, 3),
        },
    ),
    "AveragePool": (one("AveragePool", kernel_shape=[2], strides=[2], ceil_mode=1), (2, 5), {}),
    "MaxPool with places": (one("MaxPool", "x", "m y", kernel_shape=[2]), (2, 4), {}),
    "LpPool": (one("LpPool", kernel_shape=[3], pads=[1, 1]), (2, 4), {}),
    "GridSample": (
        [*one("Reshape", "x s", "grid"), *one("Reshape", "x t", "image"), *one("GridSample", "image grid")],
        (8,),
        {"s": vector(-1, 2, 2, 2), "t": vector(-1, 2, 2, 2)},
    ),
    "Resize to a size": (
        [helper.make_node("Resize", ["x", "", "", "s"], ["y"])],
        (2, 4),
        {"s": vector(ROWS, 2, 6)},
    ),
    "Resize to the rows' own number": (
        [
            *one("Shape", "x", "all"),
            *one("Slice", "all zero first", "n"),
            *one("Concat", "n rest", "s", axis=0),
            helper.make_node("Resize", ["x", "", "", "s"], ["y"]),
        ],
        (2, 4),
        {"zero": vector(0), "first": vector(1), "rest": vector(3, 8)},
    ),
    "GlobalMaxPool": (one("GlobalMaxPool"), (2, 4), {}),
    "SpaceToDepth": (one("SpaceToDepth", blocksize=2), (1, 4, 6), {}),
    "BatchNormalization in training": (
        one("BatchNormalization", "x c c c c", "y m v", training_mode=1),
        (3, 4),
        {"c": np.ones(3, np.float32)},
    ),
    "LayerNormalization with its mean": (
        one("LayerNormalization", "x c", "n y", axis=2),
        (2, 4),
        {"c": WEIGHTS[0]},
    ),
    "MeanVarianceNormalization of each": (one("MeanVarianceNormalization", axes=[1, 2]), (2, 4), {}),
    # Sequences.
    "LSTM": (
        one("LSTM", "x w r", "every y cell", hidden_size=4, direction="bidirectional"),
        (3, 4),
        {
            "w": np.stack([WEIGHTS] * 8).reshape(2, 16, 4),
            "r": np.stack([WEIGHTS] * 8).reshape(2, 16, 4),
        },
    ),
    "RNN, every step": (
        one("RNN", "x w r", "y last", hidden_size=4),
        (3, 4),
        {"w": WEIGHTS[None], "r": WEIGHTS[None]},
    ),
    "ReverseSequence": (
        [
            *one("ReduceMin", "x", "least", axes=[1], keepdims=0),
            *one("Mul", "least zero", "none"),
            *one("Cast", "none", "n", to=TensorProto.INT64),
            *one("Add", "n two", "lengths"),
            *one("ReverseSequence", "x lengths", batch_axis=0, time_axis=1),
        ],
        (4,),
        {"zero": np.float32(0), "two": np.int64(2)},
    ),
    "ReverseSequence of the rows": (
        one("ReverseSequence", "x lengths", batch_axis=1, time_axis=0),
        (4,),
        {"lengths": vector(1, 2, 3, 3)},
    ),
    # Shapes and places.
    "Squeeze of what is one": (one("Squeeze"), (1, 4), {}),
    "Squeeze of the rows": (one("Squeeze", "x a"), (4,), {"a": vector(0)}),
    "Split in parts": (one("Split", "x p", "z y", axis=1), (5,), {"p": vector(2, 3)}),
    "Slice backwards": (
        one("Slice", "x s e a t"),
        (2, 4),
        {"s": vector(-1), "e": vector(-4), "a": vector(-1), "t": vector(-2)},
    ),
    "Concat with a constant": (one("Concat", "x c", axis=1), (4,), {"c": WEIGHTS[:ROWS]}),
    "Concat of rows and columns": (
        [*one("Transpose", "x", "t"), *one("Concat", "x t", axis=1)],
        (ROWS,),
        {},
    ),
    "QLinearConcat": (
        [
            *one("QuantizeLinear", "x s z", "q"),
            *one("QLinearConcat", "s z q s z q s z", "r", axis=1, domain=MICROSOFT),
            *one("DequantizeLinear", "r s z"),
        ],
        (4,),
        {"s": np.float32(0.1), "z": np.uint8(9)},
    ),
    "Expand to the rows": (
        [*one("Shape", "x", "s"), *one("Expand", "c s", "e"), *one("Add", "x e")],
        (4,),
        {"c": WEIGHTS[:1]},
    ),
    "Tile of each": (
        [*one("Unsqueeze", "x a", "u"), *one("Tile", "u r")],
        (4,),
        {"a": vector(1), "r": vector(1, 2, 3)},
    ),
    "Tile of the rows": (one("Tile", "x r"), (4,), {"r": vector(2, 1)}),
    "GatherND": (one("GatherND", "x i", batch_dims=0), (4,), {"i": np.array([[0], [2]])}),
    "GatherND in each row": (
        [*one("Cast", "x", "i", to=TensorProto.INT64), *one("GatherND", "w i")],
        (1,),
        {"w": np.concatenate([WEIGHTS] * 50)},
    ),
    "GatherElements of each row": (
        [
            *one("ArgMax", "x", "i", axis=1),
            *one("GatherElements", "x i", axis=1),
        ],
        (4,),
        {},
    ),
    "ScatterElements": (
        [
            *one("ArgMax", "x", "i", axis=1),
            *one("ReduceSum", "x a", "u"),
            *one("ScatterElements", "x i u", axis=1),
        ],
        (4,),
        {"a": vector(1)},
    ),
    "ScatterElements along the rows": (
        one("ScatterElements", "x i x", axis=0),
        (4,),
        {"i": np.array([[0] * 4, [2] * 4, [1] * 4])},
    ),
    "Compress of the rows": (one("Compress", "x c", axis=0), (4,), {"c": np.array([True, False, True])}),
    "Compress by the rows": (
        [
            *one("Greater", "x zero", "b"),
            *one("Reshape", "b s", "c"),
            *one("Compress", "x c"),
        ],
        (4,),
        {"zero": np.float32(0), "s": vector(-1)},
    ),
    "Pad by less than nothing": (one("Pad", "x p"), (2, 4), {"p": vector(0, 0, -1, 0, 1, 2)}),
    "Pad of the rows": (one("Pad", "x p"), (4,), {"p": vector(1, 0, 0, 0)}),
    "EyeLike": ([*one("EyeLike", "x", "e"), *one("Add", "x e")], (ROWS,), {}),
    "Size": ([*one("Size", "x", "n"), *one("Cast", "n", "f", to=1), *one("Div", "x f")], (4,), {}),
    # The fused operators of Microsoft's transformers.
    "Attention with a mask": (
        [
            *one("ReduceMax", "x", "m", axes=[2], keepdims=0),
            *one("Greater", "m zero", "b"),
            *one("Cast", "b", "mask", to=TensorProto.INT32),
            *one("Attention", "x w c mask", num_heads=2, domain=MICROSOFT),
        ],
        (3, 4),
        {"w": np.tile(WEIGHTS, 3), "c": np.tile(WEIGHTS[0], 3), "zero": np.float32(-99)},
    ),
    "Attention with a bias": (
        [helper.make_node("Attention", ["x", "w", "c", "", "", "b"], ["y"], domain=MICROSOFT, num_heads=2)],
        (3, 4),
        {"w": np.tile(WEIGHTS, 3), "c": np.tile(WEIGHTS[0], 3), "b": np.ones((1, 2, 3, 3), np.float32)},
    ),
    "EmbedLayerNormalization": (
        [
            *one("ArgMax", "x", "top", axis=2, keepdims=0),
            *one("Cast", "top", "i", to=TensorProto.INT32),
            helper.make_node(
                "EmbedLayerNormalization", ["i", "", "w", "w", "", "c", "c"], ["y", "mask"], domain=MICROSOFT
            ),
        ],
        (3, 4),
        {"w": WEIGHTS, "c": WEIGHTS[0]},
    ),
    "QLinearAdd": (
        [
            *one("QuantizeLinear", "x s z", "q"),
            *one("QLinearAdd", "q s z q s z s z", "r", domain=MICROSOFT),
            *one("QLinearSigmoid", "r s z s z", "t", domain=MICROSOFT),
            *one("DequantizeLinear", "t s z"),
        ],
        (2, 4),
        {"s": np.float32(0.1), "z": np.uint8(9)},
    ),
    "QGemm": (
        [
            *one("QuantizeLinear", "x s z", "q"),
            helper.make_node(
                "QGemm", ["q", "s", "z", "w", "s", "z", "", "s", "z"], ["r"], domain=MICROSOFT, transB=1
            ),
            *one("DequantizeLinear", "r s z"),
        ],
        (4,),
        {"s": np.float32(0.1), "z": np.uint8(9), "w": np.arange(12, dtype=np.uint8).reshape(3, 4)},
    ),
    "QLinearSoftmax": (
        [
            *one("QuantizeLinear", "x s z", "q"),
            *one("QLinearSoftmax", "q s z s z", "r", domain=MICROSOFT, axis=1, opset=13),
            *one("DequantizeLinear", "r s z"),
        ],
        (2, 4),
        {"s": np.float32(0.1), "z": np.uint8(9)},
    ),
    # The operators of converted scikit-learn models.
    "Scaler": (one("Scaler", offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5] * 4, domain=ML), (4,), {}),
    "Imputer": (one("Imputer", imputed_value_floats=[7.0], replaced_value_float=0.0, domain=ML), (4,), {}),
    "Binarizer": (one("Binarizer", threshold=0.5, domain=ML), (4,), {}),
    "ArrayFeatureExtractor": (one("ArrayFeatureExtractor", "x i", domain=ML), (4,), {"i": vector(2, 0)}),
    "FeatureVectorizer": (one("FeatureVectorizer", "x x", inputdimensions=[4, 4], domain=ML), (4,), {}),
    "OneHotEncoder": (
        [
            *one("ArgMax", "x", "i", axis=1),
            *one("OneHotEncoder", "i", "y", cats_int64s=[0, 1, 2, 3], domain=ML),
        ],
        (4,),
        {},
    ),
    "LinearClassifier": (
        one(
            "LinearClassifier",
            "x",
            "label y",
            coefficients=[1.0, -2.0, 3.0, 4.0, 0.5, 1.0, -1.0, 2.0],
            intercepts=[0.0, 0.0],
            classlabels_ints=[0, 1],
            post_transform="SOFTMAX",
            domain=ML,
        ),
        (4,),
        {},
    ),
    # More matrices and numbers.
    "MatMul of two batches": (
        [*one("Transpose", "x", "t", perm=[0, 2, 1]), *one("MatMul", "x t")],
        (2, 4),
        {},
    ),
    "Einsum of the rows": (one("Einsum", "x x", equation="ab,cb->ac"), (4,), {}),
    "Softmax of the rows": (one("Softmax", axis=0), (4,), {}),
    "Clip": (one("Clip", "x lo hi"), (2, 4), {"lo": np.float32(-1), "hi": np.float32(1)}),
    "PRelu": (one("PRelu", "x c"), (2, 4), {"c": WEIGHTS[0]}),
    "Mod": (one("Mod", "x c", fmod=1), (4,), {"c": np.float32(2)}),
    "Sum of three": (one("Sum", "x x x"), (2, 4), {}),
    "CumSum of the rows": (one("CumSum", "x a"), (4,), {"a": np.int64(0)}),
    "Hardmax": (one("Hardmax", axis=-1), (2, 4), {}),
    "Det": (one("Det"), (2, 2), {}),
    "IsInf": ([*one("IsInf", "x", "i"), *one("Cast", "i", "y", to=1)], (4,), {}),
    "Gelu": (one("Gelu", domain=MICROSOFT), (2, 4), {}),
    "BiasGelu": (one("BiasGelu", "x c", domain=MICROSOFT), (2, 4), {"c": WEIGHTS[0]}),
}
