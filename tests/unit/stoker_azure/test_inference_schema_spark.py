"""Descriptions of Spark's data frames, by a puppet of Spark."""

import datetime as dt
import json
import sys
import types
from decimal import Decimal
from typing import Any, Self

import numpy as np
import pytest

from stoker_azure.inference_schema.decorators import input_schema
from stoker_azure.inference_schema.spark_frames import SparkParameterType


def convert(kind: Any, value: Any) -> Any:
    """The argument of `run` for a value."""

    @input_schema("data", kind)
    def run(data: Any) -> Any:
        return data

    return run(data=value)


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
    """A list of objects becomes a frame with the sample's schema; null and missing values are None."""
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
