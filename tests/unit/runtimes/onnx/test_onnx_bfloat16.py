"""ONNX models with `bfloat16` tensors."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from tests.unit.runtimes.onnx.test_onnx_loading import (
    BOOL,
    CPU,
    FLOAT,
    STRING,
    Value,
    deployment,
    node,
    runtime,
    score,
    write,
)

from stoker.device.loading import load
from stoker.errors import LoadFailed
from stoker.runtimes.onnx.bfloat16 import element_type
from stoker.tensors import TensorSpec, all_finite, finite_rows

BF16 = TensorProto.BFLOAT16
DTYPE = TensorSpec("x", "bfloat16", ()).numpy_dtype


def doubler(folder: Path, rows: str = "n", width: int | str = 3) -> Path:
    """Write a model that doubles `bfloat16[n,width]` in float32."""
    nodes = [
        node("Cast", "x", "wide", to=FLOAT),
        node("Add", "wide wide", "sum"),
        node("Cast", "sum", "y", to=BF16),
    ]
    return write(folder, nodes, [("x", BF16, [rows, width])], [("y", BF16, [rows, width])])


def test_rows_of_bfloat16_are_served_as_rows(tmp_path: Path) -> None:
    """The batch has its own dtype; the numbers are those of float32, rounded to 16 bits."""
    loaded = runtime(doubler(tmp_path))
    assert loaded.signature.takes == "rows"
    assert [spec.dtype for spec in (*loaded.signature.inputs, *loaded.signature.outputs)] == ["bfloat16"] * 2
    rows = np.random.default_rng(0).random((4, 3)).astype(DTYPE)
    (answers,) = loaded.run([rows])
    assert isinstance(answers, np.ndarray)
    assert answers.dtype == DTYPE
    np.testing.assert_array_equal(answers.astype(np.float32), 2 * rows.astype(np.float32))
    answers[0] = 0  # its own memory


def test_they_are_tested_with_companions_and_warmed_up(tmp_path: Path) -> None:
    """Huge numbers, NaN and denormals of 16 bits are among the companions."""
    loaded = load(deployment(doubler(tmp_path)), CPU)
    row_test = loaded.signature.isolation
    assert row_test is not None
    assert row_test.batched


def test_free_sizes_and_other_dtypes_are_served(tmp_path: Path) -> None:
    """Empty tensors and booleans are in the same call."""
    nodes = [node("Identity", name, f"same_{name}") for name in ("x", "flags")]
    values: list[Value] = [("x", BF16, ["a", "b"]), ("flags", BOOL, [2])]
    outputs: list[Value] = [(f"same_{name}", kind, shape) for name, kind, shape in values]
    loaded = runtime(write(tmp_path, nodes, values, outputs))
    (answer,) = score(loaded, {"x": np.zeros((2, 0), DTYPE), "flags": np.array([True, False])})
    assert isinstance(answer, dict)
    assert (answer["same_x"].dtype, answer["same_x"].shape) == (DTYPE, (2, 0))
    assert answer["same_flags"].tolist() == [True, False]


def test_strings_beside_them_are_refused(tmp_path: Path) -> None:
    """ONNX Runtime cannot bind strings from Python; the message names the input."""
    nodes = [node("Identity", name, f"same_{name}") for name in ("x", "words")]
    values: list[Value] = [("x", BF16, ["n"]), ("words", STRING, ["n"])]
    outputs: list[Value] = [(f"same_{name}", kind, shape) for name, kind, shape in values]
    with pytest.raises(LoadFailed, match="the input 'words' holds strings"):
        runtime(write(tmp_path, nodes, values, outputs))


def test_view_with_other_strides_is_copied(tmp_path: Path) -> None:
    """ONNX Runtime gets memory in C order."""
    loaded = runtime(doubler(tmp_path))
    rows = np.arange(12).reshape(3, 4).astype(DTYPE).T
    (answers,) = loaded.run([rows])
    assert isinstance(answers, np.ndarray)
    assert answers.tolist() == (2 * np.arange(12).reshape(3, 4).T).tolist()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_found(number: float) -> None:
    """Their rows are kept apart, as those of other dtypes."""
    rows = np.array([[1, 2], [3, number]], DTYPE)
    assert not all_finite(rows)
    finite = finite_rows([rows], 2)
    assert finite is not None
    assert finite.tolist() == [True, False]
    assert all_finite(rows[:1])


def test_bound_memory_has_onnxs_number_of_the_type() -> None:
    """Other dtypes are bound by numpy's names."""
    assert element_type(DTYPE) == BF16
    assert element_type(np.dtype(np.float16)) == np.float16
