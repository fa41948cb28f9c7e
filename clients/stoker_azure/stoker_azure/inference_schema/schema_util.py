"""What the decorators have recorded of a function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from stoker_azure.inference_schema.function_schemas import REGISTRY, find_schemas, schemas_of

__all__ = [
    "get_input_schema",
    "get_output_schema",
    "get_schemas_dict",
    "get_supported_versions",
    "is_schema_decorated",
]


def is_schema_decorated(func: Callable[..., Any]) -> bool:
    """Whether `input_schema` or `output_schema` decorates a function, below other decorators too."""
    return find_schemas(func) is not None


def get_input_schema(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments: an object with a property and an example for each."""
    return copy.deepcopy(schemas_of(func).input) or {"type": "object"}


def get_output_schema(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of what a function returns."""
    return copy.deepcopy(schemas_of(func).output) or {"type": "object"}


def get_supported_versions(func: Callable[..., Any]) -> list[str]:
    """Return the Swagger versions that can express all schemas of a function, of `2.0`, `3.0` and `3.1`."""
    return sorted(schemas_of(func).versions)


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
