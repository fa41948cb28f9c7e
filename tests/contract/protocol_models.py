"""The models on which the protocols are tested: small ONNX files, each for something that is easily got wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import ml_dtypes  # noqa: F401  # it lets numpy know bfloat16
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["DATATYPES", "DEPLOYMENT", "MATRIX", "write_models"]

FLOAT, HALF, INT64, STRING = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.STRING
Value = tuple[str, int, Sequence[int | str | None]]

DATATYPES: Final = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
"""The protocol's numeric datatypes, by numpy's names."""

MATRIX: Final = np.array([[1, 0, 2], [0, 1, -1], [3, -2, 0.5], [1, 1, 1]], np.float32)
"""The weights of the model `scores`: float32[4, 3]."""

DEPLOYMENT: Final = """
frontends: 1
timeout_ms: 120000
max_body_mb: 1
models:
  - {path: models/scores.onnx, max_batch_rows: 64}
  - {path: models/pair.onnx}
  - {path: models/every.onnx}
  - {path: models/texts.onnx}
  - {path: models/scaled.onnx}
  - {path: models/bytes.onnx}
  - {path: models/sequence.onnx}
  - {path: models/padded.onnx, pad: {tokens: -1}, max_delay_ms: 20}
  - {path: models/body/score.py, name: script}
"""


def write_models(folder: Path) -> None:
    """Write all models.

    - `scores`: rows of 4 numbers, times `MATRIX`.
    - `pair`: inputs `a` float32[n,2] and `b` int64[n,3]; outputs `sums` float32[n], of `a`, and `twice` int64[n,3].
    - `every`: an input `in_X` [n,2] and an equal output `out_X` for each of `DATATYPES`.
    - `texts`: strings [n], and the same again.
    - `scaled`: no batch axis: `x` float32[3] times the scalar `k`; and the scalar `k` again.
    - `bytes`: strings [n] under the name `image_bytes`.
    - `sequence`: `tokens` int64[n,length]; `last` int64[n], and `doubled` [n,length].
    - `padded`: the same tokens; how many of them are not -1, int64[n].
    """
    folder.mkdir(parents=True)
    _save(
        folder / "scores.onnx",
        [helper.make_node("MatMul", ["x", "matrix"], ["y"])],
        [("x", FLOAT, ["rows", 4])],
        [("y", FLOAT, ["rows", 3])],
        {"matrix": MATRIX},
    )
    _save(
        folder / "pair.onnx",
        [
            helper.make_node("ReduceSum", ["a", "last"], ["sums"], keepdims=0),
            helper.make_node("Add", ["b", "b"], ["twice"]),
        ],
        [("a", FLOAT, ["rows", 2]), ("b", INT64, ["rows", 3])],
        [("sums", FLOAT, ["rows"]), ("twice", INT64, ["rows", 3])],
        {"last": np.array([1])},
    )
    types = {name: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, dtype in DATATYPES.items()}
    _save(
        folder / "every.onnx",
        [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in types],
        [(f"in_{name}", kind, ["rows", 2]) for name, kind in types.items()],
        [(f"out_{name}", kind, ["rows", 2]) for name, kind in types.items()],
    )
    for name, taken, given in (("texts", "words", "same"), ("bytes", "image_bytes", "copy_bytes")):
        node = helper.make_node("Identity", [taken], [given])
        _save(folder / f"{name}.onnx", [node], [(taken, STRING, ["rows"])], [(given, STRING, ["rows"])])
    _save(
        folder / "scaled.onnx",
        [helper.make_node("Mul", ["x", "k"], ["y"]), helper.make_node("Identity", ["k"], ["again"])],
        [("x", FLOAT, [3]), ("k", FLOAT, [])],
        [("y", FLOAT, [3]), ("again", FLOAT, [])],
    )
    _save(
        folder / "sequence.onnx",
        [
            helper.make_node("Gather", ["tokens", "minus_one"], ["last"], axis=1),
            helper.make_node("Add", ["tokens", "tokens"], ["doubled"]),
        ],
        [("tokens", INT64, ["rows", "length"])],
        [("last", INT64, ["rows"]), ("doubled", INT64, ["rows", "length"])],
        {"minus_one": np.array(-1)},
    )
    _save(
        folder / "padded.onnx",
        [
            helper.make_node("Equal", ["tokens", "minus_one"], ["is_padding"]),
            helper.make_node("Not", ["is_padding"], ["is_token"]),
            helper.make_node("Cast", ["is_token"], ["ones"], to=INT64),
            helper.make_node("ReduceSum", ["ones", "last"], ["count"], keepdims=0),
        ],
        [("tokens", INT64, ["rows", "length"])],
        [("count", INT64, ["rows"])],
        {"minus_one": np.array(-1), "last": np.array([1])},
    )


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[Value],
    outputs: list[Value],
    constants: dict[str, np.ndarray] | None = None,
) -> None:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    # The oldest versions that hold these operators, so that every supported ONNX Runtime loads the file.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    onnx.checker.check_model(model)
    onnx.save(model, path)
