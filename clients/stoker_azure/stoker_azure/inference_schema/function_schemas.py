"""What decorators know of a function: kept with the function, and by its name for those who list them all."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

__all__ = ["REGISTRY", "FunctionSchemas", "find_schemas", "record", "schemas_of"]

_MARK: Final = "__stoker_schemas__"


@dataclass(frozen=True, slots=True)
class FunctionSchemas:
    """What is known of one function; each decorator adds to what those below it have said.

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
        """Return it with a further argument described.

        Args:
            names: Names of all arguments of the function.
            param_name: Name of the argument.
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
        return dataclasses.replace(
            self,
            input={
                "type": "object",
                "properties": {**described["properties"], param_name: argument},
                "example": {**described["example"], param_name: example},
            },
            versions=self.versions.intersection(versions),
        )

    def with_output(self, schema: dict[str, Any], versions: Sequence[str]) -> FunctionSchemas:
        """Return it with the returned value described.

        Args:
            schema: The schema, with an `example`.
            versions: Swagger versions that can express it.

        Raises:
            ValueError: It is described already.
        """
        if self.output is not None:
            raise ValueError(f"Error, output schema already defined for function: {self.name}.")
        return dataclasses.replace(
            self, output=copy.deepcopy(schema), versions=self.versions.intersection(versions)
        )


_REGISTRY: Final[dict[str, FunctionSchemas]] = {}

REGISTRY: Final[Mapping[str, FunctionSchemas]] = MappingProxyType(_REGISTRY)
"""Every decorated function of this process by name; of several with one name the last."""


def record(wrapper: Callable[..., Any], schemas: FunctionSchemas) -> Callable[..., Any]:
    """Attach what is known to the function that a decorator made, and return that function."""
    setattr(wrapper, _MARK, schemas)
    _REGISTRY[schemas.name] = schemas
    return wrapper


def schemas_of(function: Callable[..., Any]) -> FunctionSchemas:
    """Return what is known of a function; of an undecorated one its name."""
    found = find_schemas(function)
    if found is not None:
        return found
    innermost = inspect.unwrap(function)
    module = getattr(innermost, "__module__", "<unknown>")
    return FunctionSchemas(f"{module}.{getattr(innermost, '__name__', '<unknown>')}")


def find_schemas(function: object) -> FunctionSchemas | None:
    """Return what is known of a function, also where other decorators are around it, or None."""
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
