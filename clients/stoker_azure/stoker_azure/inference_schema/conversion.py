"""From what JSON gives to what `run` gets."""

from __future__ import annotations

from typing import Any

from stoker_azure.inference_schema.parameter_types.abstract_parameter_type import AbstractParameterType
from stoker_azure.inference_schema.parameter_types.standard_py_parameter_type import (
    StandardPythonParameterType,
)

__all__ = ["convert_argument"]


def convert_argument(name: str, value: Any, param_type: AbstractParameterType) -> Any:
    """Return the argument as its description has it.

    Args:
        name: Name of the argument.
        value: Its value; one that has the type of the sample already is kept, unless parts of it are described.
        param_type: The description.

    Raises:
        ValueError: The value does not fit.
    """
    try:
        return _convert(value, param_type)
    except ValueError:
        raise
    # What numpy, pandas and types of a script's own raise for a value that is not what they expect.
    except (TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise ValueError(f"Invalid input for the '{name}' parameter: {error}") from error


def _convert(value: Any, param_type: AbstractParameterType) -> Any:
    expected = param_type.sample_data_type
    if isinstance(param_type, StandardPythonParameterType):
        if expected is dict and isinstance(value, dict):
            described = param_type.sample_data_type_map
            return {
                name: _convert(member, described[name]) if name in described else member
                for name, member in value.items()
            }
        if expected in (list, tuple) and isinstance(value, list | tuple):
            items = param_type.sample_data_type_list
            # An array has one description for its items: the first.
            return [_convert(item, items[0]) for item in value] if items else value
    if isinstance(value, expected):
        return value
    return param_type.deserialize_input(value)
