"""Descriptions of data frames: pandas', and Spark's by a puppet of Spark."""

import datetime as dt
import json
import subprocess
import sys
import types
from decimal import Decimal
from typing import Any, Self

import numpy as np
import pandas as pd
import pytest
from tests.patience import PROGRAM_S

from stoker_azure.inference_schema.decorators import input_schema
from stoker_azure.inference_schema.pandas_frames import PandasParameterType
from stoker_azure.inference_schema.spark_frames import SparkParameterType

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


# --- pandas ---


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
    """Unchecked: whoever calls from Python knows what it is."""
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


# --- Spark ---


class PuppetSchema:
    """A Spark schema, in the form that Spark has it as JSON."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802
        """As `pyspark.sql.types.StructType` does."""
        return {
            "type": "struct",
            "fields": [{"name": name, "type": kind} for name, kind in self.fields.items()],
        }


class PuppetFrame:
    """A Spark data frame that holds its rows."""

    def __init__(self, rows: list[Any], schema: PuppetSchema | None = None) -> None:
        self.rows, self.schema = rows, schema

    def collect(self) -> list[Any]:
        """All rows."""
        return self.rows


class PuppetSession:
    """A Spark session, and its builder."""

    def __init__(self) -> None:
        self.builder = self

    def getOrCreate(self) -> Self:  # noqa: N802
        """The session."""
        return self

    def createDataFrame(self, rows: list[Any], schema: PuppetSchema | None = None) -> PuppetFrame:  # noqa: N802
        """A frame."""
        return PuppetFrame(rows, schema)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something to import as Spark."""
    module: Any = types.ModuleType("pyspark.sql")
    module.DataFrame, module.SparkSession = PuppetFrame, PuppetSession()
    monkeypatch.setitem(sys.modules, "pyspark", types.ModuleType("pyspark"))
    monkeypatch.setitem(sys.modules, "pyspark.sql", module)


COLUMNS = {
    "n": "long",
    "price": "decimal(10,2)",
    "blob": "binary",
    "day": "date",
    "at": "timestamp",
    "ok": "boolean",
    "list": {"type": "array", "elementType": "integer", "containsNull": True},
    "map": {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True},
    "row": {"type": "struct", "fields": [{"name": "x", "type": "short"}]},
}
SPARK_ROW = {
    "n": 1,
    "price": Decimal("1.25"),
    "blob": bytearray(b"ab"),
    "day": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5),
    "ok": True,
    "list": [1, 2],
    "map": {"k": 0.5},
    "row": {"x": 7},
}
JSON_ROW = {
    "n": 1,
    "price": 1.25,
    "blob": "YWI=",
    "day": "2026-01-02",
    "at": "2026-01-02 03:04:05,000000",
    "ok": True,
    "list": [1, 2],
    "map": {"k": 0.5},
    "row": {"x": 7},
}


def test_spark_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to do."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ImportError, match="needs pyspark, which is not installed; add pyspark"):
        SparkParameterType(object())


@pytest.mark.usefixtures("spark")
def test_spark_schemas() -> None:
    """A row is an object; the example is what JSON can hold."""
    schema = SparkParameterType(PuppetFrame([SPARK_ROW], PuppetSchema(COLUMNS))).input_to_swagger()
    assert schema["example"] == [JSON_ROW]
    assert schema["items"]["properties"] == {
        "n": {"type": "integer", "format": "int64"},
        "price": {"type": "number", "format": "decimal"},
        "blob": {"type": "string", "format": "binary"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "ok": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "integer", "format": "int32"}},
        "map": {"type": "object", "additionalProperties": {"type": "number", "format": "double"}},
        "row": {"type": "object", "properties": {"x": {"type": "integer", "format": "int16"}}},
    }
    json.dumps(schema)


@pytest.mark.usefixtures("spark")
def test_spark_values() -> None:
    """A list of objects becomes a frame with the sample's schema; what is null or missing is None."""
    sample = PuppetFrame([SPARK_ROW], PuppetSchema(COLUMNS))
    frame = convert(SparkParameterType(sample), [JSON_ROW, {"n": 2, "list": None}])
    assert frame.schema is sample.schema
    assert frame.rows == [SPARK_ROW, {**dict.fromkeys(COLUMNS), "n": 2}]
    assert convert(SparkParameterType(sample), sample) is sample
    free = convert(SparkParameterType(sample, apply_sample_schema=False), [JSON_ROW])
    assert (free.rows, free.schema) == ([JSON_ROW], None)


@pytest.mark.usefixtures("spark")
def test_spark_refusals() -> None:
    """A value that is neither a frame nor a list of rows, or of a type without a schema."""
    sample = PuppetFrame([], PuppetSchema(COLUMNS))
    with pytest.raises(TypeError, match="must provide a sample Spark DataFrame"):
        SparkParameterType(np.zeros(1))
    with pytest.raises(
        ValueError, match="unable to convert input of type \"<class 'str'>\" to Spark DataFrame"
    ):
        convert(SparkParameterType(sample), "text")
    with pytest.raises(ValueError, match="Invalid input for the 'data' parameter"):
        convert(SparkParameterType(sample), [5])
    with pytest.raises(TypeError, match="extracting schema from data of type interval day"):
        SparkParameterType(PuppetFrame([], PuppetSchema({"z": "interval day"}))).input_to_swagger()
    with pytest.raises(TypeError, match="extracting schema from data of type udt"):
        SparkParameterType(PuppetFrame([], PuppetSchema({"z": {"type": "udt"}}))).input_to_swagger()
