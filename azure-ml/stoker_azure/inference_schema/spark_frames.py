"""Arguments that are Spark data frames; Spark is imported when the first is described."""

from __future__ import annotations

import base64
import datetime as dt
import importlib
from decimal import Decimal
from typing import Any, Final

from stoker_azure.inference_schema.standard import AbstractParameterType, parse_datetime

__all__ = ["SparkParameterType"]

_SIMPLE_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "byte": {"type": "integer", "format": "int8"},
    "short": {"type": "integer", "format": "int16"},
    "integer": {"type": "integer", "format": "int32"},
    "long": {"type": "integer", "format": "int64"},
    "boolean": {"type": "boolean"},
    "float": {"type": "number", "format": "float"},
    "double": {"type": "number", "format": "double"},
    "decimal": {"type": "number", "format": "decimal"},
    "string": {"type": "string"},
    "binary": {"type": "string", "format": "binary"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    "timestamp_ntz": {"type": "string", "format": "date-time"},
    "null": {"type": "object"},
    "void": {"type": "object"},
}


class SparkParameterType(AbstractParameterType):
    """A Spark data frame with the schema of the sample."""

    def __init__(self, sample_input: Any, apply_sample_schema: bool = True) -> None:
        """Describe a data frame.

        Args:
            apply_sample_schema: Give the frame the sample's schema; else Spark chooses one.

        Raises:
            ImportError: pyspark is not installed.
            TypeError: The sample is no Spark data frame.
        """
        if not isinstance(sample_input, _spark_sql().DataFrame):
            raise TypeError("Invalid sample input provided, must provide a sample Spark DataFrame array.")
        super().__init__(sample_input)
        self.apply_sample_schema = apply_sample_schema

    def deserialize_input(self, input_data: Any) -> Any:
        """Return the Spark data frame of a list of objects, a row each; a data frame is returned as it is.

        Raises:
            ValueError: It is no list, or a value does not fit the sample's schema.
        """
        sql = _spark_sql()
        if isinstance(input_data, sql.DataFrame):
            return input_data
        if not isinstance(input_data, list):
            raise ValueError(
                f'Error, unable to convert input of type "{type(input_data)}" to Spark DataFrame'
            )
        session = sql.SparkSession.builder.getOrCreate()
        if not self.apply_sample_schema:
            return session.createDataFrame(input_data)
        schema = self.sample_input.schema
        rows = [_value(row, schema.jsonValue()) for row in input_data]
        return session.createDataFrame(rows, schema=schema)

    def input_to_swagger(self) -> dict[str, Any]:
        """Return the schema: an array of objects, a row each.

        Raises:
            TypeError: A column has a type that Swagger has no word for.
        """
        kind = self.sample_input.schema.jsonValue()
        return {
            "type": "array",
            "items": _schema(kind),
            "example": [_example(row, kind) for row in self.sample_input.collect()],
        }


def _spark_sql() -> Any:
    try:
        return importlib.import_module("pyspark.sql")
    except ImportError as error:
        raise ImportError(
            "SparkParameterType needs pyspark, which is not installed; add pyspark to the model's environment."
        ) from error


def _simple(kind: Any) -> str:
    """The name of a type without its parameters, as in `decimal(10,2)`; empty for one that is composed."""
    return kind.partition("(")[0] if isinstance(kind, str) else ""


def _schema(kind: Any) -> dict[str, Any]:
    """Schema of a Spark type in the form that `DataType.jsonValue` gives."""
    if _simple(kind) in _SIMPLE_SCHEMAS:
        return dict(_SIMPLE_SCHEMAS[_simple(kind)])
    match kind:
        case {"type": "struct", "fields": fields}:
            return {
                "type": "object",
                "properties": {field["name"]: _schema(field["type"]) for field in fields},
            }
        case {"type": "array", "elementType": element}:
            return {"type": "array", "items": _schema(element)}
        case {"type": "map", "valueType": value}:
            return {"type": "object", "additionalProperties": _schema(value)}
    name = kind if isinstance(kind, str) else kind.get("type")
    raise TypeError(f"We currently do not support extracting schema from data of type {name}")


def _example(value: Any, kind: Any) -> Any:
    """A value of a row of the sample as JSON has it."""
    match kind:
        case {"type": "struct", "fields": fields} if value is not None:
            return {field["name"]: _example(value[field["name"]], field["type"]) for field in fields}
        case {"type": "array", "elementType": element} if value is not None:
            return [_example(item, element) for item in value]
        case {"type": "map", "valueType": member} if value is not None:
            return {str(key): _example(item, member) for key, item in value.items()}
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S,%f")
    return str(value) if isinstance(value, dt.date) else value


def _value(value: Any, kind: Any) -> Any:
    """Convert a JSON value to Spark's type."""
    if value is None:
        return None
    match kind:
        case {"type": "struct", "fields": fields}:
            return {field["name"]: _value(value.get(field["name"]), field["type"]) for field in fields}
        case {"type": "array", "elementType": element}:
            return [_value(item, element) for item in value]
        case {"type": "map", "valueType": member}:
            return {key: _value(item, member) for key, item in value.items()}
    match _simple(kind):
        case "date":
            return parse_datetime(value).date()
        case "timestamp" | "timestamp_ntz":
            return parse_datetime(value)
        case "decimal":
            return Decimal(str(value))
        case "binary":
            return bytearray(base64.b64decode(value))
    return value
