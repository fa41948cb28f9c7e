"""The decorators' description of a function, kept with the function and listed by its name."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker_azure.inference_schema.standard import AbstractParameterType, StandardPythonParameterType

__all__ = [
    "REGISTRY",
    "FunctionSchemas",
    "convert_argument",
    "find_schemas",
    "function_schemas",
    "get_input_schema",
    "get_output_schema",
    "get_schemas_dict",
    "get_supported_versions",
    "input_schema",
    "is_schema_decorated",
    "output_schema",
    "record",
]

_MARK: Final = "__stoker_schemas__"


class FunctionSchemas(Struct, frozen=True):
    """The schemas of one function; each decorator adds to those below it.

    Attributes:
        name: `MODULE.NAME` of the function.
        input: Schema of all its arguments as one object.
        output: Schema of what it returns.
        versions: The Swagger versions that can express both.
    """

    name: str
    input: dict[str, Any] | None = None
    output: dict[str, Any] | None = None
    versions: frozenset[str] = frozenset(("2.0", "3.0", "3.1"))

    def with_input(
        self, names: Sequence[str], param_name: str, schema: dict[str, Any], versions: Sequence[str]
    ) -> FunctionSchemas:
        """Return the schemas with one more argument.

        Args:
            schema: Its schema, with an `example`.
            versions: Swagger versions that can express it.
        """
        argument = copy.deepcopy(schema)
        example = argument.pop("example")
        undescribed: dict[str, Any] = {
            "properties": {name: {} for name in names},
            "example": dict.fromkeys(names, ""),
        }
        described = self.input or undescribed
        return msgspec.structs.replace(
            self,
            input={
                "type": "object",
                "properties": {**described["properties"], param_name: argument},
                "example": {**described["example"], param_name: example},
            },
            versions=self.versions.intersection(versions),
        )

    def with_output(self, schema: dict[str, Any], versions: Sequence[str]) -> FunctionSchemas:
        """Return the schemas with the returned value.

        Args:
            schema: The schema, with an `example`.
            versions: Swagger versions that can express it.

        Raises:
            ValueError: It is described already.
        """
        if self.output is not None:
            raise ValueError(f"Error, output schema already defined for function: {self.name}.")
        return msgspec.structs.replace(
            self, output=copy.deepcopy(schema), versions=self.versions.intersection(versions)
        )


_REGISTRY: Final[dict[str, FunctionSchemas]] = {}

REGISTRY: Final[Mapping[str, FunctionSchemas]] = MappingProxyType(_REGISTRY)
"""Every decorated function of this process by name; of several with one name the last."""


def record(wrapper: Callable[..., Any], schemas: FunctionSchemas) -> Callable[..., Any]:
    """Attach schemas to the function that a decorator made, and return that function."""
    setattr(wrapper, _MARK, schemas)
    _REGISTRY[schemas.name] = schemas
    return wrapper


def function_schemas(function: Callable[..., Any]) -> FunctionSchemas:
    """Return the schemas of a function; an undecorated one has its name only."""
    found = find_schemas(function)
    if found is not None:
        return found
    innermost = inspect.unwrap(function)
    module = getattr(innermost, "__module__", "<unknown>")
    return FunctionSchemas(f"{module}.{getattr(innermost, '__name__', '<unknown>')}")


def find_schemas(function: object) -> FunctionSchemas | None:
    """Return the schemas of a function, also if other decorators wrap it; None if it has none."""
    return _search(function, set())


def _search(function: object, seen: set[int]) -> FunctionSchemas | None:
    if id(function) in seen or not callable(function):
        return None
    seen.add(id(function))
    schemas = getattr(function, _MARK, None)
    if isinstance(schemas, FunctionSchemas):
        return schemas
    # A decorator without functools.wraps has the function that it calls in its closure only.
    inner = [
        getattr(function, "__wrapped__", None),
        *map(_content, getattr(function, "__closure__", None) or ()),
    ]
    return next((found for each in inner if (found := _search(each, seen)) is not None), None)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except (AttributeError, ValueError):
        # Not a cell after all, or one that is still empty.
        return None


def convert_argument(name: str, value: Any, param_type: AbstractParameterType) -> Any:
    """Return the argument as its description has it.

    Args:
        value: Its value; one that has the type of the sample already is kept, unless parts of it are described.

    Raises:
        ValueError: The value does not fit.
    """
    try:
        return _convert(value, param_type)
    except ValueError:
        raise
    # numpy, pandas and a script's own types raise these for unexpected values.
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
        schemas = function_schemas(function).with_input(names, param_name, schema, versions)

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

    Raises:
        TypeError: `output_type` is no parameter type.
    """
    _check_type(output_type)
    schema = output_type.input_to_swagger()
    versions = output_type.supported_versions()

    def decorate(function: _Function) -> _Function:
        schemas = function_schemas(function).with_output(schema, versions)

        @functools.wraps(function)
        def described(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return record(described, schemas)

    return decorate


def _check_type(param_type: object) -> None:
    if not isinstance(param_type, AbstractParameterType):
        raise TypeError("Error, provided param_type must be a subclass of the AbstractParameterType.")


def _is_empty(value: object) -> bool:
    """Whether a value counts as left out; arrays and frames never do."""
    return value is None or (isinstance(value, _PLAIN) and not value)


def is_schema_decorated(func: Callable[..., Any]) -> bool:
    """Whether `input_schema` or `output_schema` decorates a function, below other decorators too."""
    return find_schemas(func) is not None


def get_input_schema(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments: an object with a property and an example for each."""
    return copy.deepcopy(function_schemas(func).input) or {"type": "object"}


def get_output_schema(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of what a function returns."""
    return copy.deepcopy(function_schemas(func).output) or {"type": "object"}


def get_supported_versions(func: Callable[..., Any]) -> list[str]:
    """Return the Swagger versions that can express all schemas of a function, of `2.0`, `3.0` and `3.1`."""
    return sorted(function_schemas(func).versions)


def get_schemas_dict() -> dict[str, dict[str, Any]]:
    """Return the schemas of every decorated function: `MODULE.NAME` to `input_schema` and `output_schema`."""
    return {
        name: {
            kind: copy.deepcopy(schema)
            for kind, schema in (("input_schema", schemas.input), ("output_schema", schemas.output))
            if schema is not None
        }
        for name, schemas in REGISTRY.items()
    }
