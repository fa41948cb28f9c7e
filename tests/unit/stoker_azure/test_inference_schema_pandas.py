"""Descriptions of pandas' data frames."""

import json
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest
from tests.patience import PROGRAM_S

from stoker_azure.inference_schema.decorators import input_schema
from stoker_azure.inference_schema.pandas_frames import PandasParameterType

FRAME = pd.DataFrame({"a": [1, 2], "b": [1.5, 2.5], "c": ["x", "y"]})
TIMES = pd.DataFrame(
    {"when": pd.to_datetime(["2026-01-02T03:04:05"]), "took": pd.to_timedelta(["1 days"]), "n": [1]}
)
ZONED = pd.DataFrame({"when": pd.to_datetime(["2026-01-02T03:04:05Z"])})
ORIENTS = ("split", "records", "index", "columns", "values", "table")
INT = {"type": "integer", "format": "int64"}
FLOAT = {"type": "number", "format": "double"}
TEXT = {"type": "string"}


def convert(kind: Any, value: Any) -> Any:
    """The argument of `run` for a value."""

    @input_schema("data", kind)
    def run(data: Any) -> Any:
        return data

    return run(data=value)


def test_rows_become_a_frame_with_the_types_of_the_sample() -> None:
    """Columns are found by name, in any order; numbers may be texts."""
    frame = convert(PandasParameterType(FRAME), [{"c": 5, "b": 2, "a": "7"}])
    assert frame[["a", "b", "c"]].to_dict("records") == [{"a": 7, "b": 2.0, "c": "5"}]
    assert frame.dtypes.to_dict() == FRAME.dtypes.to_dict()


@pytest.mark.parametrize("orient", ORIENTS)
def test_an_example_is_a_valid_value(orient: str) -> None:
    """The example of a schema can be sent, in every orientation that pandas has."""
    kind = PandasParameterType(FRAME, orient=orient, enforce_column_type=orient != "values")
    schema = kind.input_to_swagger()
    assert schema["format"] == f"pandas.DataFrame:{orient}"
    frame = convert(kind, json.loads(json.dumps(schema["example"])))
    assert frame.values.tolist() == FRAME.values.tolist()


def test_a_frame_is_passed_as_it_is() -> None:
    """It is not checked, as the caller is Python code."""
    frame = pd.DataFrame({"other": [1]})
    assert convert(PandasParameterType(FRAME), frame) is frame
    assert PandasParameterType(FRAME).deserialize_input(frame) is frame


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([{"a": 1, "b": 2}], "data frame has size 2 on dimension #1, while expected value is 3"),
        ([{"a": "q", "b": 2, "c": "z"}], "invalid literal for int"),
        ("text", "unable to convert input of type <class 'str'> into Pandas Dataframe"),
        (5, "unable to convert input of type <class 'int'> into Pandas Dataframe"),
        (None, "unable to convert input of type <class 'NoneType'> into Pandas Dataframe"),
    ],
)
def test_value_that_is_no_fitting_frame_is_refused(value: Any, complaint: str) -> None:
    """Wrong columns, wrong types and other values raise ValueError."""
    with pytest.raises(ValueError, match=complaint):
        convert(PandasParameterType(FRAME), value)


def test_checks_can_be_turned_off() -> None:
    """Each by itself."""
    assert convert(PandasParameterType(FRAME, enforce_shape=False), [{"a": 1}]).shape == (1, 1)
    free = convert(PandasParameterType(FRAME, enforce_column_type=False), [{"a": 1.5, "b": 2, "c": 3}])
    assert [str(dtype) for dtype in free.dtypes] == ["float64", "int64", "int64"]


def test_a_column_of_another_name_is_taken_as_it_is() -> None:
    """It has no type in the sample."""
    frame = convert(PandasParameterType(FRAME), [{"x": 1, "b": 2, "c": "z"}])
    assert frame["x"].dtype == object


def test_names_can_be_given_by_the_sample() -> None:
    """In order; deprecated, as in the real package."""
    with pytest.warns(DeprecationWarning, match="apply_column_names is a deprecated parameter"):
        kind = PandasParameterType(FRAME, apply_column_names=True)
    assert list(convert(kind, [{"x": 1, "y": 2, "z": "t"}]).columns) == ["a", "b", "c"]


def test_times_and_differences() -> None:
    """ISO 8601 for both."""
    frame = convert(
        PandasParameterType(TIMES), [{"when": "2025-03-04T05:06:07.000", "took": "P2DT0H0M0S", "n": 3}]
    )
    assert frame.dtypes.to_dict() == TIMES.dtypes.to_dict()
    assert frame["when"][0] == pd.Timestamp("2025-03-04T05:06:07")
    assert frame["took"][0] == pd.Timedelta(days=2)


def test_a_time_without_the_zone_of_the_sample_is_refused() -> None:
    """Where JSON says of a column that it has times, pandas does not guess their zone; of texts it does."""
    assert (
        convert(PandasParameterType(ZONED), [{"when": "2025-03-04T05:06:07"}])["when"][0].tzinfo is not None
    )
    kind = PandasParameterType(ZONED, orient="table")
    zoned = kind.input_to_swagger()["example"]
    assert convert(kind, zoned)["when"][0].tzinfo is not None
    naive = json.loads(TIMES[["when"]].to_json(orient="table"))
    with pytest.raises(ValueError, match=r"As of pandas 2.0, can no longer convert from timezone-naive"):
        convert(kind, naive)


ROW = {"type": "object", "required": ["a", "b", "c"], "properties": {"a": INT, "b": FLOAT, "c": TEXT}}


@pytest.mark.parametrize(
    ("orient", "schema"),
    [
        ("records", {"type": "array", "items": ROW}),
        ("values", {"type": "array", "items": {"type": "array", "items": TEXT}}),
        ("index", {"type": "object", "required": ["0", "1"], "properties": {"0": ROW, "1": ROW}}),
        (
            "columns",
            {
                "type": "object",
                "required": ["a", "b", "c"],
                "properties": {
                    name: {"type": "object", "required": ["0", "1"], "properties": {"0": cell, "1": cell}}
                    for name, cell in (("a", INT), ("b", FLOAT), ("c", TEXT))
                },
            },
        ),
        (
            "split",
            {
                "type": "object",
                "required": ["columns", "index", "data"],
                "properties": {
                    "columns": {"type": "array", "items": TEXT},
                    "index": {"type": "array", "items": INT},
                    "data": {"type": "array", "items": {"type": "array", "items": TEXT}},
                },
            },
        ),
    ],
)
def test_schemas(orient: str, schema: dict[str, Any]) -> None:
    """That of the sample's JSON in this orientation."""
    got = PandasParameterType(FRAME, orient=orient).input_to_swagger()
    assert got.pop("example") == json.loads(FRAME.to_json(orient=orient))
    assert got == {**schema, "format": f"pandas.DataFrame:{orient}"}


WHEN = {"type": "string", "format": "date-time"}
TOOK = {"type": "string", "format": "timedelta"}


@pytest.mark.parametrize(
    ("orient", "path"),
    [
        ("records", ("items", "properties", "{}")),
        ("index", ("properties", "0", "properties", "{}")),
        ("columns", ("properties", "{}", "properties", "0")),
        ("table", ("properties", "data", "items", "properties", "{}")),
    ],
)
def test_schemas_of_times(orient: str, path: tuple[str, ...]) -> None:
    """Where the column of a value is known, its format is."""
    schema = PandasParameterType(TIMES, orient=orient).input_to_swagger()
    found = {}
    for column in TIMES.columns:
        found[column] = schema
        for step in path:
            found[column] = found[column][step.format(column)]
    assert found == {"when": WHEN, "took": TOOK, "n": INT}


def test_versions_follow_the_orientation() -> None:
    """Rows as lists mix types, which version 2 cannot say."""
    assert PandasParameterType(FRAME).supported_versions() == ["2.0", "3.0", "3.1"]
    assert PandasParameterType(FRAME, orient="values").supported_versions() == ["3.0", "3.1"]


def test_an_empty_sample() -> None:
    """Nothing is known of its rows."""
    schema = PandasParameterType(FRAME.iloc[:0]).input_to_swagger()
    assert (schema["items"], schema["example"]) == ({"type": "object"}, [])


def test_samples_that_cannot_be_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame, no orientation of pandas; without pandas nothing is a frame."""
    with pytest.raises(TypeError, match="must provide a sample Pandas Dataframe"):
        PandasParameterType([1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Invalid orient provided, must be one of"):
        PandasParameterType(FRAME, orient="diagonal")
    monkeypatch.delitem(sys.modules, "pandas")
    with pytest.raises(TypeError, match="must provide a sample Pandas Dataframe"):
        PandasParameterType(FRAME)


def test_pandas_is_imported_by_scripts_only() -> None:
    """Importing every parameter type imports neither pandas nor Spark."""
    program = """
import sys
from stoker_azure.finder import IMPORTS, install
install()
for name in IMPORTS:
    __import__(name)
assert not {"pandas", "pyspark"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=PROGRAM_S
    )
    assert done.returncode == 0, done.stderr
