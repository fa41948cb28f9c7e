"""Small numbers that a graph computes from its sizes are those that ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from tests.onnx_operators import one, vector
from tests.zoo import graph_of, model_of, tensor

from stoker.isolation.onnx.analysis import follow_batch_axis
from stoker.isolation.onnx.sizes import Size

INTEGER, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
SIZES = one("Shape", "x", "sizes")
"""[N, 4, 6]: the sizes of the input of all these graphs."""
BOTH = [*one("Gather", "sizes zero", "n"), *one("Gather", "sizes one", "four")]
NUMBERS = {"zero": np.int64(0), "one": np.int64(1), "two": vector(2)}
GRAPHS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "sizes": (one("Shape", "x"), {}),
    "some sizes": (one("Shape", "x", start=-2, end=3), {}),
    "how many": (one("Size", "x"), {}),
    "a constant": (one("Constant", "", value_ints=[3, -1]), {}),
    "a constant number": (one("Constant", "", value_int=7), {}),
    "a constant tensor": (one("Constant", "", value=onnx.numpy_helper.from_array(vector(5, 6))), {}),
    "the same": ([*SIZES, *one("Identity", "sizes")], {}),
    "one of them": ([*SIZES, *one("Gather", "sizes i")], {"i": np.int64(-1)}),
    "several": ([*SIZES, *one("Gather", "sizes i", axis=0)], {"i": vector(2, 0, 0)}),
    "a table": ([*SIZES, *one("Gather", "sizes i")], {"i": np.array([[0, 1]])}),
    "a part": ([*SIZES, *one("Slice", "sizes s e")], {"s": vector(1), "e": vector(10**9)}),
    "a part backwards": (
        [*SIZES, *one("Slice", "sizes s e a t")],
        {"s": vector(-1), "e": vector(-(10**9)), "a": vector(0), "t": vector(-1)},
    ),
    "together": ([*SIZES, *one("Concat", "sizes two sizes", axis=0)], {}),
    "squeezed": ([*SIZES, *one("Gather", "sizes two", "g"), *one("Squeeze", "g")], {}),
    "unsqueezed": ([*SIZES, *BOTH, *one("Unsqueeze", "n a")], {"a": vector(0)}),
    "as a vector": ([*SIZES, *BOTH, *one("Reshape", "n s")], {"s": vector(-1)}),
    "as a number": (
        [*SIZES, *one("Gather", "sizes two", "g"), *one("Reshape", "g none")],
        {"none": vector()},
    ),
    "sum": ([*SIZES, *BOTH, *one("Add", "n zero")], {}),
    "sum of numbers": ([*SIZES, *BOTH, *one("Add", "four two")], {}),
    "sum of sizes": ([*SIZES, *BOTH, *one("Add", "zero n")], {}),
    "sum with a size": ([*SIZES, *BOTH, *one("Add", "n one")], {}),
    "difference": ([*SIZES, *BOTH, *one("Sub", "n n")], {}),
    "difference of numbers": ([*SIZES, *BOTH, *one("Sub", "four two")], {}),
    "product": ([*SIZES, *BOTH, *one("Mul", "n four")], {}),
    "product with less than nothing": ([*SIZES, *BOTH, *one("Mul", "n less")], {"less": np.int64(-1)}),
    "quotient": ([*SIZES, *BOTH, *one("Mul", "n four", "m"), *one("Div", "m two")], {}),
    "quotient that is not whole": ([*SIZES, *BOTH, *one("Div", "n two")], {}),
    "quotient of numbers": (one("Div", "a b"), {"a": vector(-7, 7), "b": vector(2, -2)}),
    "quotient of casts": (
        [
            *SIZES,
            *BOTH,
            *one("Cast", "four", "f", to=FLOAT),
            *one("Cast", "a", "g", to=FLOAT),
            *one("Div", "g f"),
        ],
        {"a": np.int64(6)},
    ),
    "quotient by a size": ([*SIZES, *BOTH, *one("Div", "four n")], {}),
    "whole part": (
        [*one("Div", "a b", "d"), *one("Cast", "d", to=INTEGER)],
        {"a": np.float32([-7, 7]), "b": np.float32(2)},
    ),
    "whether": (
        [*SIZES, *one("Cast", "sizes", "b", to=BOOL), *one("Cast", "b", to=INTEGER)],
        {},
    ),
    "small numbers": (
        [*one("Cast", "a", "b", to=TensorProto.UINT8), *one("Cast", "b", to=INTEGER)],
        {"a": vector(300, -1)},
    ),
    "numbers that are too large": (
        [
            *one("Cast", "a", "b", to=TensorProto.INT32),
            *one("Cast", "b", "c", to=FLOAT),
            *one("Cast", "c", to=INTEGER),
        ],
        {"a": vector(2**40, 2**24 + 1, 2**24)},
    ),
    "equal": ([*SIZES, *BOTH, *one("Equal", "n n", "e"), *one("Cast", "e", to=INTEGER)], {}),
    "equal to none": (
        [*SIZES, *one("Equal", "sizes less", "e"), *one("Cast", "e", to=INTEGER)],
        {"less": np.int64(-1)},
    ),
    "equal numbers": ([*one("Equal", "a two", "e"), *one("Cast", "e", to=INTEGER)], {"a": vector(2, 3)}),
    "less": ([*SIZES, *one("Less", "sizes a", "e"), *one("Cast", "e", to=INTEGER)], {"a": vector(9, 9, 1)}),
    "greater": (
        [*SIZES, *one("Greater", "sizes a", "e"), *one("Cast", "e", to=INTEGER)],
        {"a": vector(9, 2, 9)},
    ),
    "not": (
        [*one("Equal", "a two", "e"), *one("Not", "e", "d"), *one("Cast", "d", to=INTEGER)],
        {"a": vector(2, 3)},
    ),
    "least": ([*SIZES, *BOTH, *one("Min", "four two")], {}),
    "least of a size": ([*SIZES, *one("Min", "sizes two")], {}),
    "most": ([*SIZES, *BOTH, *one("Max", "four two")], {}),
    "one or the other": (
        [*SIZES, *one("Equal", "a less", "e"), *one("Where", "e sizes a")],
        {"a": vector(-1, 5, -1), "less": vector(-1)},
    ),
    "one or the other by a size": (
        [*SIZES, *one("Equal", "sizes two", "e"), *one("Where", "e one a")],
        {"a": vector(7, 8, 9)},
    ),
    "counted": ([*SIZES, *BOTH, *one("Range", "zero four one")], {}),
    "counted down": (one("Range", "four zero step"), {"four": np.int64(4), "step": np.int64(-3)}),
    "counted by a size": ([*SIZES, *BOTH, *one("Range", "zero n one")], {}),
    "all of them": ([*SIZES, *one("ReduceProd", "sizes", keepdims=0)], {}),
    "all of them, kept": ([*SIZES, *one("ReduceProd", "sizes", axes=[0])], {}),
    "filled": (
        one("ConstantOfShape", "two", value=onnx.numpy_helper.from_array(vector(3))),
        {},
    ),
    "filled with nothing": ([*one("ConstantOfShape", "two", "c"), *one("Cast", "c", to=INTEGER)], {}),
    "a row of a table": (one("Gather", "table two", axis=1), {"table": np.array([[1, 2, 3], [4, 5, 6]])}),
    "a part of a table": (
        one("Slice", "table s e a"),
        {"table": np.array([[1, 2, 3], [4, 5, 6]]), "s": vector(1), "e": vector(9), "a": vector(-1)},
    ),
    "a table of sizes": (
        [*SIZES, *one("Unsqueeze", "sizes a", "t"), *one("Add", "t col")],
        {"a": vector(0), "col": np.array([[0], [0]])},
    ),
    "a table of numbers": (one("Reshape", "a s"), {"a": vector(1, 2, 3, 4), "s": vector(0, -1)}),
    "a table, reshaped": ([*SIZES, *one("Reshape", "sizes s")], {"s": vector(3, 1)}),
    "a table, squeezed": (
        [*SIZES, *one("Reshape", "sizes s", "t"), *one("Squeeze", "t a")],
        {"s": vector(1, 3, 1), "a": vector(0, 2)},
    ),
    "tables beside each other": (
        [*SIZES, *one("Unsqueeze", "sizes a", "t"), *one("Concat", "t t", axis=1)],
        {"a": vector(1)},
    ),
    "one or the other of a table": (
        [*SIZES, *one("Equal", "a less", "e"), *one("Where", "e sizes col")],
        {"a": vector(-1, 5, -1), "less": vector(-1), "col": np.array([[7], [8]])},
    ),
    "a table that is filled": ([*SIZES, *one("Expand", "sizes s")], {"s": vector(2, 1)}),
    "filled with a size": ([*SIZES, *BOTH, *one("Expand", "n three")], {"three": vector(3)}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_numbers_that_are_followed_are_those_of_the_runtime(name: str) -> None:
    """For one row and for five, each known number, also a multiple of N, is the one that the graph computes."""
    nodes, constants = GRAPHS[name]
    graph = graph_of(nodes, {**NUMBERS, **constants}, [tensor("x", "rows", 4, 6)])
    read = follow_batch_axis(model_of(graph))["y"]
    for rows in (1, 5):
        found = computed(graph, np.zeros((rows, 4, 6), np.float32))
        if read.shape is not None:
            assert [number(size, rows) for size in read.shape] in ([*found.shape], [None] * found.ndim)
        if read.content is not None:
            assert len(read.content) == found.size
            for known, actual in zip(read.content, found.flat, strict=True):
                assert number(known, rows) in {None, actual}


def test_numbers_of_most_graphs_are_followed() -> None:
    """Numbers are known for most graphs, so the test above compares them."""
    lacking = set()
    for name, (nodes, constants) in GRAPHS.items():
        graph = graph_of(nodes, {**NUMBERS, **constants}, [tensor("x", "rows", 4, 6)])
        content = follow_batch_axis(model_of(graph))["y"].content
        if content is None or None in content:
            lacking.add(name)
    assert lacking <= {
        "counted by a size",
        "least of a size",
        "less",
        "greater",
        "numbers that are too large",
        "one or the other by a size",
        "product with less than nothing",
        "quotient by a size",
        "quotient that is not whole",
        "small numbers",
        "sum with a size",
    }


def number(size: float | Size | None, rows: int) -> float | None:
    """Return a size for this number of rows; these graphs have no free sizes."""
    return size.factor * rows**size.rows if isinstance(size, Size) else size


def computed(graph: onnx.GraphProto, batch: np.ndarray) -> np.ndarray:
    """Return the runtime's result for y, an integer or a float."""
    for kind in (INTEGER, FLOAT):
        graph.output[0].type.tensor_type.elem_type = kind
        try:
            running = onnxruntime.InferenceSession(model_of(graph), providers=["CPUExecutionProvider"])
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            continue
        return np.asarray(running.run(["y"], {"x": batch})[0])
    raise AssertionError("the output is of another type")
