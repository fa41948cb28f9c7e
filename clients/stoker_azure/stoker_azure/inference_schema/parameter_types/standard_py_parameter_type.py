"""Arguments that are plain Python values, or lists and dictionaries of described ones."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from typing import Any

from stoker_azure.inference_schema.moments import parse_date, parse_datetime, parse_time
from stoker_azure.inference_schema.parameter_types.abstract_parameter_type import AbstractParameterType
from stoker_azure.inference_schema.parameter_types.sample_schema import schema_of

__all__ = ["StandardPythonParameterType"]


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
