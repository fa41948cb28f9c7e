"""Tables as inputs, and outputs as tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from stoker.errors import InvalidInput
from stoker.offline.tables import columns_of, in_form_of, inputs_of, script_rows
from stoker.tensors import TensorInfo

ROW = (TensorInfo("x", "float32", (-1, 3)),)
TEXT = (TensorInfo("t", "string", (-1,)),)
PAIR = (TensorInfo("a", "float32", (-1, 1)), TensorInfo("b", "int64", (-1,)))


def test_one_input_takes_the_only_column_or_all_of_them() -> None:
    """A column of any name, columns that are the numbers of a row, lists in cells, or an array alone."""
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    tables = (
        rows,
        rows.tolist(),
        {"x": rows},
        {"data": rows},
        pd.DataFrame(rows, columns=["a", "b", "c"]),
        pd.DataFrame({"image": list(rows)}),
    )
    for table in tables:
        (array,) = inputs_of(columns_of(table, ())[0], ROW).values()
        assert isinstance(array, np.ndarray)
        assert (array.dtype, array.tolist()) == (np.float32, rows.tolist())


def test_several_inputs_are_columns_of_their_names() -> None:
    """A column of numbers fits rows of one number; what stays is no input."""
    table = pd.DataFrame({"id": [7, 8], "b": [1, 2], "a": [0.5, 1.5]}, index=[4, 5])
    columns, kept = columns_of(table, ["id"])
    feeds = inputs_of(columns, PAIR)
    assert {name: array.tolist() for name, array in feeds.items()} == {"a": [[0.5], [1.5]], "b": [1, 2]}  # type: ignore[union-attr]
    answer = in_form_of(table, kept, {"y": np.eye(2), "t": np.array([b"\xc3\xa9", b"\xff"], object)})
    assert (list(answer.columns), list(answer.index)) == (["id", "y", "t"], [4, 5])
    assert [answer["y"][4].tolist(), *answer["t"]] == [[1, 0], "é", b"\xff"]


@pytest.mark.parametrize(
    ("columns", "infos", "message"),
    [
        ({"x": np.zeros((2, 4))}, ROW, r"Expected x float32\[\?,3\], got the shape \[2, 4\]"),
        ({"": None}, ROW, r"Expected x float32\[\?,3\], got no array: NoneType"),
        ({"x": np.array(["a"])}, ROW, "got an array of dtype <U1"),
        (
            {"b": np.zeros(2), "a": np.zeros(2)},
            PAIR,
            r"expected b int64\[\?\], got an array of dtype float64",
        ),
        ({"a": np.zeros(2)}, PAIR, r"have to be the inputs a, b; got 'a'"),
        ({"a": [1], "b": [1], "id": [1]}, PAIR, "go through it with keep"),
        ({"t": ["a", None]}, TEXT, "expected strings, got NoneType"),
        ({"x": np.full((1, 3), 1e300)}, ROW, "does not fit float32|too large"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    columns: dict[str, object], infos: tuple[TensorInfo, ...], message: str
) -> None:
    """The error names the column, the expected form and the given one."""
    with pytest.raises(InvalidInput, match=message):
        inputs_of(columns, infos)


def test_columns_that_stay_have_to_be_there() -> None:
    """The error of an unknown name lists the columns."""
    with pytest.raises(InvalidInput, match="no column 'id' to keep; there are: 'x'"):
        columns_of({"x": [1]}, ["id"])


def test_masked_columns_are_refused() -> None:
    """Values under a mask would be scored; columns that stay may have one; an unused mask is none."""
    masked, whole = np.ma.masked_equal(np.arange(3.0), 1), np.ma.masked_equal(np.arange(3.0), 9)
    with pytest.raises(InvalidInput, match="The rows are a masked array, and what lies under its mask"):
        columns_of(masked, [])
    with pytest.raises(InvalidInput, match="The column 'a' is a masked array"):
        columns_of({"a": masked, "b": whole}, [])
    assert columns_of({"a": whole, "id": masked}, ["id"])[0]["a"] is whole


def test_outputs_come_in_the_form_of_the_table() -> None:
    """A mapping for a mapping, and for an array the only output, or all by name."""
    one, two = {"y": np.ones(2)}, {"y": np.ones(2), "z": np.zeros(2)}
    assert in_form_of(np.ones(2), {}, one) is one["y"]
    assert set(in_form_of(np.ones(2), {}, two)) == {"y", "z"}
    assert list(in_form_of({"x": 1}, {"id": [1, 2]}, one)) == ["id", "y"]
    assert in_form_of({"x": 1}, {}, np.ones(2))["result"].tolist() == [1, 1]


def test_scripts_get_objects_of_several_columns() -> None:
    """One column gives its value; several give an object a row."""
    assert script_rows({"": np.eye(2)}).shape == (2, 2)
    assert script_rows({"a": np.array([b"x", "y"], object)}) == ["x", "y"]
    assert script_rows({"a": [1, 2], "b": ["x", "y"]}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
