"""The decorators of `run`: what each argument is, and what comes back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import stoker_azure.inference_schema.schema_util  # noqa: F401
from stoker_azure.inference_schema.function_schemas import record, schemas_of
from stoker_azure.inference_schema.parameter_types.abstract_parameter_type import AbstractParameterType
from stoker_azure.inference_schema.parameter_types.standard_py_parameter_type import (
    StandardPythonParameterType,
)

__all__ = ["convert_argument", "input_schema", "output_schema"]


# From what JSON gives to what `run` gets.


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


# Who decorates can be asked: as in the real package, that module is loaded too.


_Function = Callable[..., Any]
_PLAIN = (bool, int, float, str, list, dict)


def input_schema(
    param_name: str,
    param_type: AbstractParameterType,
    convert_to_provided_type: bool = True,
    optional: bool = False,
) -> Callable[[_Function], _Function]:
    """Describe an argument; a value that JSON has given is converted before the function is called.

    Args:
        param_name: Name of the argument.
        param_type: What it is.
        convert_to_provided_type: Whether to convert it.
        optional: Whether it may be left out, or be empty: None, zero, an empty text, list or dictionary are
            passed as they are.

    Raises:
        TypeError: `param_type` is no parameter type.
    """
    _check_type(param_type)
    schema = param_type.input_to_swagger()
    versions = param_type.supported_versions()

    def decorate(function: _Function) -> _Function:
        names = list(inspect.signature(function).parameters)
        schemas = schemas_of(function).with_input(names, param_name, schema, versions)

        @functools.wraps(function)
        def converting(*args: Any, **kwargs: Any) -> Any:
            if not convert_to_provided_type:
                return function(*args, **kwargs)
            if param_name in kwargs:
                if not (optional and _is_empty(kwargs[param_name])):
                    kwargs[param_name] = convert_argument(param_name, kwargs[param_name], param_type)
            elif param_name in names:
                position = names.index(param_name)
                if position < len(args) and not (optional and _is_empty(args[position])):
                    value = convert_argument(param_name, args[position], param_type)
                    args = (*args[:position], value, *args[position + 1 :])
            elif not optional:
                raise RuntimeError(
                    f'Error, provided param_name "{param_name}" is not in the decorated function.'
                )
            return function(*args, **kwargs)

        return record(converting, schemas)

    return decorate


def output_schema(output_type: AbstractParameterType) -> Callable[[_Function], _Function]:
    """Describe what the function returns; it is documented, not converted.

    Args:
        output_type: What it is.

    Raises:
        TypeError: `output_type` is no parameter type.
    """
    _check_type(output_type)
    schema = output_type.input_to_swagger()
    versions = output_type.supported_versions()

    def decorate(function: _Function) -> _Function:
        schemas = schemas_of(function).with_output(schema, versions)

        @functools.wraps(function)
        def described(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return record(described, schemas)

    return decorate


def _check_type(param_type: object) -> None:
    if not isinstance(param_type, AbstractParameterType):
        raise TypeError("Error, provided param_type must be a subclass of the AbstractParameterType.")


def _is_empty(value: object) -> bool:
    """Whether it counts as left out; arrays and frames never do."""
    return value is None or (isinstance(value, _PLAIN) and not value)
