"""ONNX models by ONNX Runtime, on tiny models that are built here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stoker.errors import DeviceUnavailable, LoadFailed
from stoker.lifecycle import load
from stoker.runtimes.onnx import OnnxRuntime
from stoker.servable import Device, Servable
from stoker.tensors import TensorSpec

CPU = Device("cpu", 0, "a processor")
FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
Value = tuple[str, int, Sequence[int | str | None] | None]
"""Name, element type and shape of an input or output."""


def write(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[Value],
    outputs: list[Value],
    constants: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a model of these operators."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    # The oldest versions that hold these operators, so that every supported ONNX Runtime loads the file.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    path = folder / "tiny.onnx"
    onnx.save(model, path)
    return path


def servable(path: Path, max_batch_rows: int = 8) -> Servable:
    """The file as a servable."""
    return Servable("tiny", 1, "onnx", path, path.parent, max_batch_rows, 1000)


def runtime(path: Path) -> OnnxRuntime:
    """The file, loaded on the CPU."""
    return OnnxRuntime(servable(path), CPU, 1)


def refusal(path: Path) -> str:
    """The message with which a file is refused."""
    with pytest.raises(LoadFailed) as refused:
        runtime(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """An operator between values whose names are separated by spaces."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def one_operator(folder: Path, operator: str, taken: Value, given: Value, **attributes: Any) -> Path:
    """A model of one operator from `x` to `y`."""
    return write(folder, [node(operator, "x", "y", **attributes)], [taken], [given])


@pytest.mark.parametrize("batch", ["rows", "N", None])
def test_a_dynamic_batch_axis_is_served(tmp_path: Path, batch: str | None) -> None:
    """Whether the axis has a name or not, it is not part of the row."""
    path = one_operator(tmp_path, "Neg", ("x", FLOAT, [batch, 2, 3]), ("y", FLOAT, [batch, 2, 3]))
    loaded = runtime(path)
    assert loaded.signature.inputs == (TensorSpec("x", "float32", (2, 3)),)
    assert loaded.signature.outputs == (TensorSpec("y", "float32", (2, 3)),)
    for rows in (1, 5):
        data = np.arange(rows * 6, dtype=np.float32).reshape(rows, 2, 3)
        (output,) = loaded.run([data])
        assert output.tolist() == (-data).tolist()


def test_inputs_and_outputs_keep_their_order_and_dtypes(tmp_path: Path) -> None:
    """Two inputs, one of them a scalar per row, and two outputs of other dtypes."""
    nodes = [
        node("Cast", "k", "k_float", to=FLOAT),
        node("Unsqueeze", "k_float one", "k_column"),
        node("Add", "x k_column", "sum"),
        node("Neg", "k", "minus"),
    ]
    path = write(
        tmp_path,
        nodes,
        [("x", FLOAT, ["n", 2]), ("k", INT64, ["n"])],
        [("sum", FLOAT, ["n", 2]), ("minus", INT64, ["n"])],
        {"one": np.array([1], np.int64)},
    )
    loaded = runtime(path)
    assert loaded.signature.inputs == (TensorSpec("x", "float32", (2,)), TensorSpec("k", "int64", ()))
    assert loaded.signature.outputs == (TensorSpec("sum", "float32", (2,)), TensorSpec("minus", "int64", ()))
    total, minus = loaded.run([np.array([[1, 2], [3, 4]], np.float32), np.array([10, 2**60])])
    assert total[0].tolist() == [11, 12]
    assert minus.tolist() == [-10, -(2**60)]


@pytest.mark.parametrize(
    ("operator", "element", "dtype", "data", "expected"),
    [
        ("Not", BOOL, "bool", [[True, False]], [[False, True]]),
        ("Neg", INT64, "int64", [[5, -(2**62)]], [[-5, 2**62]]),
        ("Neg", TensorProto.INT32, "int32", [[5, -7]], [[-5, 7]]),
        ("Neg", TensorProto.INT8, "int8", [[5, -7]], [[-5, 7]]),
        ("Neg", TensorProto.FLOAT16, "float16", [[0.5, 2]], [[-0.5, -2]]),
        ("Neg", TensorProto.DOUBLE, "float64", [[0.1, 2]], [[-0.1, -2]]),
        ("Identity", TensorProto.UINT8, "uint8", [[0, 255]], [[0, 255]]),
        ("Identity", TensorProto.UINT64, "uint64", [[0, 2**64 - 1]], [[0, 2**64 - 1]]),
    ],
)
def test_dtypes_are_numpys(
    tmp_path: Path, operator: str, element: int, dtype: str, data: list[Any], expected: list[Any]
) -> None:
    """What ONNX calls tensor(int64) is int64, and so on for every kind of number."""
    loaded = runtime(one_operator(tmp_path, operator, ("x", element, ["n", 2]), ("y", element, ["n", 2])))
    assert [spec.dtype for spec in (*loaded.signature.inputs, *loaded.signature.outputs)] == [dtype, dtype]
    (output,) = loaded.run([np.array(data, dtype)])
    assert output.tolist() == expected


def test_an_output_of_unknown_shape_is_learned(tmp_path: Path) -> None:
    """Exporters often leave it out: two rows of zeros say what a row of the answer is."""
    path = write(
        tmp_path,
        [node("Reshape", "x shape", "y")],
        [("x", FLOAT, ["n", 2, 6])],
        [("y", FLOAT, ["n", "a", "b"])],
        {"shape": np.array([0, 4, 3], np.int64)},
    )
    assert runtime(path).signature.outputs == (TensorSpec("y", "float32", (4, 3)),)


def test_weights_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    """Old files list their weights among the inputs; nobody sends them."""
    graph = helper.make_graph(
        [node("Mul", "x w", "y")],
        "old",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in (("x", ["n", 2]), ("w", [2]))],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.array([2, 3], np.float32), "w")],
    )
    path = tmp_path / "old.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)
    loaded = runtime(path)
    assert [spec.name for spec in loaded.signature.inputs] == ["x"]
    assert loaded.run([np.ones((1, 2), np.float32)])[0].tolist() == [[2, 3]]


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        ([1, 2], "has shape [1, 2]; its first axis must be a dynamic batch axis"),
        ([8], "has shape [8]; its first axis must be a dynamic batch axis"),
        ([], "has shape []; its first axis must be a dynamic batch axis"),
        (None, "its first axis must be a dynamic batch axis"),
        (
            ["n", "length"],
            "has shape ['n', 'length']; only the batch axis may be dynamic. Fix the other sizes",
        ),
        (["n", 3, None], "only the batch axis may be dynamic"),
    ],
)
def test_an_input_that_is_no_batch_of_fixed_rows_is_refused(
    tmp_path: Path, shape: list[int | str | None] | None, complaint: str
) -> None:
    """The message names the input, its shape, and the way out."""
    message = refusal(one_operator(tmp_path, "Neg", ("x", FLOAT, shape), ("y", FLOAT, shape)))
    assert "input 'x'" in message
    assert complaint in message


def test_inputs_and_outputs_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    """Texts need an entry script."""
    taken: Value = ("x", STRING, ["n", 2])
    message = refusal(one_operator(tmp_path, "Identity", taken, ("y", STRING, ["n", 2])))
    assert "input 'x'" in message
    assert "holds tensor(string), only numbers are served" in message
    given: Value = ("y", STRING, ["n", 2])
    message = refusal(one_operator(tmp_path, "Cast", ("x", FLOAT, ["n", 2]), given, to=STRING))
    assert "output 'y'" in message
    assert "only numbers are served" in message


@pytest.mark.parametrize(
    ("operator", "attributes", "shape"),
    [
        ("ReduceMean", {"keepdims": 0}, []),
        ("ReduceMean", {"axes": [0]}, [1, 3]),
        ("Transpose", {}, [3, "n"]),
    ],
)
def test_an_output_without_a_batch_axis_is_refused(
    tmp_path: Path, operator: str, attributes: dict[str, Any], shape: list[int | str]
) -> None:
    """An answer that mixes the rows of a batch cannot be taken apart."""
    path = one_operator(tmp_path, operator, ("x", FLOAT, ["n", 3]), ("y", FLOAT, shape), **attributes)
    message = refusal(path)
    assert "output 'y'" in message
    assert "for a batch of 2 rows; its first axis must be the batch" in message


def test_a_model_that_fails_on_zeros_is_refused(tmp_path: Path) -> None:
    """What every request would meet is found at load, with ONNX Runtime's own words."""
    path = write(
        tmp_path,
        [node("Cast", "x", "i", to=INT64), node("Sub", "i one", "below"), node("Gather", "table below", "y")],
        [("x", FLOAT, ["n"])],
        [("y", FLOAT, ["n"])],
        {"one": np.array(9, np.int64), "table": np.ones(3, np.float32)},
    )
    assert "fails on a batch of two rows of zeros: " in refusal(path)


def test_a_model_without_inputs_is_refused(tmp_path: Path) -> None:
    """A constant is no model."""
    path = write(
        tmp_path, [node("Identity", "c", "y")], [], [("y", FLOAT, [2])], {"c": np.zeros(2, np.float32)}
    )
    assert "has no inputs" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"no model", None])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """An empty file, another file, and no file at all."""
    path = tmp_path / "tiny.onnx"
    if content is not None:
        path.write_bytes(content)
    assert f"ONNX Runtime cannot load {path}: " in refusal(path)


def test_a_bad_row_raises_and_the_session_lives_on(tmp_path: Path) -> None:
    """A row that the model cannot take fails its batch; the next batch is fine."""
    path = write(
        tmp_path,
        [node("Cast", "x", "i", to=INT64), node("Gather", "table i", "y")],
        [("x", FLOAT, ["n"])],
        [("y", FLOAT, ["n"])],
        {"table": np.arange(3, dtype=np.float32)},
    )
    loaded = runtime(path)
    with pytest.raises(Exception, match="out of"):
        loaded.run([np.array([1, 99], np.float32)])
    assert loaded.run([np.array([1, 2], np.float32)])[0].tolist() == [1, 2]


def test_a_loaded_model_is_warm(tmp_path: Path) -> None:
    """Loading measures itself and leaves a runtime that answers."""
    path = one_operator(tmp_path, "Neg", ("x", FLOAT, ["n", 2]), ("y", FLOAT, ["n", 2]))
    loaded = load(servable(path), CPU, 2)
    assert loaded.signature.inputs[0].name == "x"
    assert loaded.runtime.run([np.ones((8, 2), np.float32)])[0].sum() == -16


def test_a_gpu_that_is_not_used_is_an_error(tmp_path: Path) -> None:
    """ONNX Runtime itself would go on with the CPU where it finds no such GPU."""
    path = one_operator(tmp_path, "Neg", ("x", FLOAT, ["n", 2]), ("y", FLOAT, ["n", 2]))
    with pytest.raises((DeviceUnavailable, LoadFailed)):
        OnnxRuntime(servable(path), Device("cuda", 99, "no GPU"), 1)
