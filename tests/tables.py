"""ONNX models of any size whose answers are known: each looks up a row of a table of random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

_COLUMNS: Final = 4


def write_table(path: Path, size_bytes: int, seed: int) -> Path:
    """Write a model that answers a row `float32[1]` with the row of its table that has this number.

    Args:
        size_bytes: The size of the table.
        seed: Of its numbers, `float32[rows, 4]`; the first rows are the same for every size.
    """
    table = table_rows(seed, max(1, size_bytes // (4 * _COLUMNS)))
    constants = {
        "table": table,
        "first": np.array(0, np.float32),
        "last": np.array(len(table) - 1, np.float32),
        "axis": np.array([1]),
    }
    nodes = [
        helper.make_node("Clip", ["x", "first", "last"], ["clipped"]),
        helper.make_node("Cast", ["clipped"], ["number"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "number"], ["found"]),
        helper.make_node("Squeeze", ["found", "axis"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", _COLUMNS])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(model, path)
    return path


def table_rows(seed: int, count: int) -> np.ndarray:
    """Return the first rows of the table of a seed: `float32[count, 4]`."""
    return np.random.default_rng(seed).standard_normal((count, _COLUMNS), np.float32)
