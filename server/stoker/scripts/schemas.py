"""Reads the decorators of `inference_schema` on a `run`: those of the real package, or Stoker's own."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

from stoker.errors import LoadFailed
from stoker.script_form import ScriptForm

_SCHEMA_PACKAGE: Final = "inference_schema"
_CONVERTERS: Final = ("inference_schema.", "stoker_azure.inference_schema")
_CONVERSION_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError)


def is_decorated(run: Callable[..., Any]) -> bool:
    """Whether `run` has an `input_schema` or `output_schema`."""
    # A script with decorators has imported the package.
    if _SCHEMA_PACKAGE not in sys.modules:
        return False
    try:
        return bool(_schema_util().is_schema_decorated(run))
    except AttributeError:
        # It takes every object in a closure for a function.
        return False


def schema_form(run: Callable[..., Any]) -> ScriptForm:
    """Return the form of a decorated `run`, with the Swagger schemas of its input and output."""
    schema_util = _schema_util()
    try:
        return ScriptForm(
            kind="schema",
            wants_head=True,
            input_schema=schema_util.get_input_schema(run),
            output_schema=schema_util.get_output_schema(run),
            swagger_versions=_versions(schema_util, run),
        )
    except Exception as error:
        raise LoadFailed(f"the schema of run() cannot be described: {error!r}") from error


def failed_in_conversion(run: Callable[..., Any], error: BaseException) -> bool:
    """Whether a decorator raised `error` while it converted an argument, before the script's own `run` began."""
    if not isinstance(error, _CONVERSION_ERRORS):
        return False
    own_code = getattr(inspect.unwrap(run), "__code__", None)
    converting = False
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code is own_code:
            return False
        converting = converting or str(frame.tb_frame.f_globals.get("__name__")).startswith(_CONVERTERS)
        frame = frame.tb_next
    return converting


def _schema_util() -> Any:
    return importlib.import_module(f"{_SCHEMA_PACKAGE}.schema_util")


def _versions(schema_util: Any, run: Callable[..., Any]) -> tuple[str, ...]:
    # "3.0" and "2.0" are other spellings of "3" and "2".
    named = (str(version).removesuffix(".0") for version in schema_util.get_supported_versions(run))
    return tuple(dict.fromkeys(named))
