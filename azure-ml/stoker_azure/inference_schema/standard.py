"""The base class of described arguments, also for types of a script's own."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = [
    "DATETIME_FORMAT",
    "DATE_FORMAT",
    "TIME_FORMAT",
    "AbstractParameterType",
    "StandardPythonParameterType",
    "parse_date",
    "parse_datetime",
    "parse_time",
    "schema_of",
]


class AbstractParameterType(ABC):
    """Describes an argument by a sample.

    Attributes:
        sample_data_type: Its type; a value that has it already is not converted.
    """

    def __init__(self, sample_input: Any) -> None:
        self.sample_input = sample_input
        self.sample_data_type = type(sample_input)

    def supported_versions(self) -> list[str]:
        """Return the Swagger versions that can express the sample, of `2.0`, `3.0` and `3.1`.

        Version 2 has no arrays of mixed types.
        """
        example = self.input_to_swagger()["example"]
        return ["2.0", "3.0", "3.1"] if _is_uniform(example) else ["3.0", "3.1"]

    @abstractmethod
    def deserialize_input(self, input_data: Any) -> Any:
        """Return what `run` gets for a value that JSON has given.

        Raises:
            ValueError: It does not fit the sample.
        """

    @abstractmethod
    def input_to_swagger(self) -> dict[str, Any]:
        """Return the Swagger schema of the sample, the sample itself in it as `example`."""


def _is_uniform(example: Any) -> bool:
    """Whether lists, and lists in them, hold one type each; dictionaries in lists are not looked into."""
    if isinstance(example, dict):
        return all(_is_uniform(value) for value in example.values())
    if isinstance(example, list):
        return len({type(item) for item in example}) <= 1 and all(
            _is_uniform(item) for item in example if isinstance(item, list)
        )
    return True


DATE_FORMAT: Final = "%Y-%m-%d"
DATETIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S.%f %z"
TIME_FORMAT: Final = "%H:%M:%S.%f %z"


def parse_date(text: str) -> dt.date:
    """Return a date.

    Raises:
        ValueError: The text is not one in the form `2026-01-31`.
    """
    return dt.datetime.strptime(text, DATE_FORMAT).date()


def parse_datetime(text: str) -> dt.datetime:
    """Return a date with a time; without a zone where the text has none.

    Raises:
        ValueError: It cannot be read.
    """
    return _parse_moment(text) or dt.datetime.fromisoformat(_without_blank_before_zone(text))


def parse_time(text: str) -> dt.time:
    """Return a time; without a zone where the text has none.

    Raises:
        ValueError: It cannot be read.
    """
    moment = _parse_moment(text)
    return dt.time.fromisoformat(_without_blank_before_zone(text)) if moment is None else moment.timetz()


def _parse_moment(text: str) -> dt.datetime | None:
    """Parse a text by dateutil; None where it is not installed."""
    try:
        parser = importlib.import_module("dateutil.parser")
    except ImportError:
        return None
    moment: dt.datetime = parser.parse(text)
    return moment


def _without_blank_before_zone(text: str) -> str:
    # Schemas show their samples with one.
    return text.replace(" +", "+").replace(" -", "-")


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


class StandardPythonParameterType(AbstractParameterType):
    """A value of the sample's type.

    Attributes:
        sample_data_type_map: The described members of a sample that is a dictionary.
        sample_data_type_list: The described items of a sample that is a list or a tuple.
    """

    def __init__(self, sample_input: Any) -> None:
        """Describe a value.

        Args:
            sample_input: A number, text, bytes, date, time, list, tuple or dictionary. Members of a dictionary
                and items of a list may be described themselves, by an `AbstractParameterType`.
        """
        super().__init__(sample_input)
        members = sample_input.items() if self.sample_data_type is dict else ()
        items = sample_input if self.sample_data_type in (list, tuple) else ()
        self.sample_data_type_map = {
            name: member for name, member in members if isinstance(member, AbstractParameterType)
        }
        self.sample_data_type_list = [item for item in items if isinstance(item, AbstractParameterType)]

    def deserialize_input(self, input_data: Any) -> Any:
        """Return the value; dates and times come as text, bytes as base64.

        A whole number passes where the sample has a fraction.

        Raises:
            ValueError: It has another type than the sample.
        """
        expected = self.sample_data_type
        value = self._parse(input_data) if isinstance(input_data, str) else input_data
        if isinstance(value, expected) or (expected is float and type(value) is int):
            return value
        raise ValueError(f"Invalid input data type to parse. Expected: {expected} but got {type(input_data)}")

    def _parse(self, text: str) -> Any:
        expected: type = self.sample_data_type
        if expected is dt.date:
            return parse_date(text)
        if expected is dt.datetime:
            return parse_datetime(text)
        if expected is dt.time:
            return parse_time(text)
        if expected in (bytes, bytearray):
            try:
                return expected(base64.b64decode(text))
            except binascii.Error as error:
                raise ValueError(f"Invalid input: not base64: {error}") from error
        return text

    def input_to_swagger(self) -> dict[str, Any]:
        """Return the schema of the sample.

        Raises:
            ValueError: The sample is None.
            TypeError: JSON cannot hold it.
        """
        if self.sample_input is None:
            raise ValueError("Sample input cannot be None")
        schema = schema_of(self.sample_input)
        try:
            json.dumps(schema)
        except TypeError as error:
            raise TypeError(
                "Invalid python data sample provided: ensure that the data is fully JSON serializable to be able to "
                f"generate swagger schema from it. Actual error: {error}"
            ) from error
        return schema
