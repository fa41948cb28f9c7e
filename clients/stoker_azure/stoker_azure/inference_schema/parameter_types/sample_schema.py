"""Swagger schemas of plain Python values."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from stoker_azure.inference_schema.moments import DATE_FORMAT, DATETIME_FORMAT, TIME_FORMAT
from stoker_azure.inference_schema.parameter_types.abstract_parameter_type import AbstractParameterType

__all__ = ["schema_of"]


def schema_of(sample: Any) -> dict[str, Any]:
    """Return the schema of a sample, with the sample in the form that JSON has it as `example`.

    A time without a zone is taken for UTC. What has no schema of its own is an `object`.
    """
    if isinstance(sample, AbstractParameterType):
        return sample.input_to_swagger()
    # Exact types: bool is an int for isinstance, and a datetime a date.
    kind = type(sample)
    if kind in (list, tuple, range):
        return _list_schema(sample)
    if kind is dict:
        return _object_schema(sample)
    if kind is bool:
        return {"type": "boolean", "example": sample}
    if kind is int:
        return {"type": "integer", "format": "int64", "example": sample}
    if kind is float:
        return {"type": "number", "format": "double", "example": sample}
    if kind in (bytes, bytearray):
        return {"type": "string", "format": "byte", "example": base64.b64encode(sample).decode()}
    if kind is dt.date:
        return {"type": "string", "format": "date", "example": sample.strftime(DATE_FORMAT)}
    if kind is dt.datetime:
        return {
            "type": "string",
            "format": "date-time",
            "example": _in_zone(sample).strftime(DATETIME_FORMAT),
        }
    if kind is dt.time:
        return {"type": "string", "format": "time", "example": _in_zone(sample).strftime(TIME_FORMAT)}
    return {"type": "string" if kind is str else "object", "example": sample}


def _in_zone(moment: Any) -> Any:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def _list_schema(samples: Iterable[Any]) -> dict[str, Any]:
    """The last item stands for all: an array has one schema for its items."""
    examples = []
    items: dict[str, Any] = {"type": "object"}
    for sample in samples:
        items = schema_of(sample)
        examples.append(items.pop("example"))
    return {"type": "array", "items": items, "example": examples}


def _object_schema(samples: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: schema_of(sample) for name, sample in samples.items()}
    examples = {name: schema.pop("example") for name, schema in properties.items()}
    return {"type": "object", "required": list(samples), "properties": properties, "example": examples}
