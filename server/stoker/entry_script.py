"""The entry-script contract of Azure Machine Learning: `init()` once, then `run()` for each request.

The script is executed as the module `entry_module`. The folder with the model's files is in the environment
variable `AZUREML_MODEL_DIR`. `run(raw_data)` gets the request body as text and returns anything that JSON
can hold; a `run` decorated with `stoker.batched` gets numpy batches instead.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import orjson

from stoker.batched import BatchedInput, batched_input
from stoker.errors import LoadFailed

__all__ = ["EntryScript", "encode_result", "encode_rows"]

_MODULE = "entry_module"
_LISTED_FILES = 200


class EntryScript:
    """A script that has been executed and initialised.

    Attributes:
        run: The script's `run`.
        batched: What `run` takes if it is decorated with `stoker.batched`, else None.
    """

    def __init__(self, path: Path, model_dir: Path) -> None:
        """Execute the script and call its `init`.

        Raises:
            LoadFailed: The script cannot be executed, lacks `init` or `run`, takes the wrong arguments, or
                `init` raised. The message holds the traceback and the listing of the model folder.
        """
        os.environ["AZUREML_MODEL_DIR"] = str(model_dir)
        os.environ["AZUREML_ENTRY_SCRIPT"] = str(path)
        module = _execute(path, model_dir)
        init = _function(module, "init", path)
        self.run = _function(module, "run", path)
        self.batched: BatchedInput | None = batched_input(self.run)
        _check_arguments(self.run)
        _call(init, f"init() of {path} raised", model_dir)


def encode_result(result: Any) -> bytes:
    """Return what `run` returned as JSON, as the Azure inference server does.

    `None` becomes `{}`; a string is encoded again even if it holds JSON; NaN and infinities become the
    tokens `NaN`, `Infinity` and `-Infinity`; numpy arrays and numbers become lists and numbers.

    Raises:
        TypeError: JSON cannot hold the result.
    """
    if result is None:
        return b"{}"
    return json.dumps(result, default=_plain).encode()


def encode_rows(rows: Sequence[Any]) -> list[bytes]:
    """Return each row of a batched result as compact JSON.

    Raises:
        TypeError: JSON cannot hold a row.
    """
    return [_encode_row(row) for row in rows]


def _encode_row(row: Any) -> bytes:
    try:
        text = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return _compact(row)
    # orjson writes what is not finite as null.
    return _compact(row) if b"null" in text else text


def _compact(row: Any) -> bytes:
    return json.dumps(row, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"run() returned {type(value).__name__}, which JSON cannot hold")


def _execute(path: Path, model_dir: Path) -> ModuleType:
    for folder in (str(path.parent), str(Path.cwd())):
        if folder not in sys.path:
            sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise LoadFailed(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Pickle and dataclasses look a class's module up by name.
    sys.modules[_MODULE] = module
    loader = spec.loader
    _call(lambda: loader.exec_module(module), f"{path} cannot be imported", model_dir)
    return module


def _call(function: Callable[[], object], failure: str, model_dir: Path) -> None:
    try:
        function()
    # SystemExit too: a script that exits while it loads has failed to load.
    except (Exception, SystemExit) as error:
        lines = traceback.format_exception(error)
        raise LoadFailed(f"{failure}:\n{''.join(lines)}{_listing(model_dir)}") from error


def _listing(model_dir: Path) -> str:
    if not model_dir.is_dir():
        return f"The model folder {model_dir} does not exist."
    files = sorted(str(path.relative_to(model_dir)) for path in model_dir.rglob("*") if path.is_file())
    more = f"\n  and {len(files) - _LISTED_FILES} more" if len(files) > _LISTED_FILES else ""
    names = "".join(f"\n  {name}" for name in files[:_LISTED_FILES]) or " nothing"
    return f"The model folder {model_dir} holds:{names}{more}"


def _function(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise LoadFailed(f"User script at {path} does not have a {name}() function defined.")
    return function  # type: ignore[no-any-return]  # narrowed by callable()


def _check_arguments(run: Callable[..., Any]) -> None:
    try:
        parameters = inspect.signature(run).parameters.values()
    except ValueError as error:
        raise LoadFailed(f"run() must be a Python function: {error}") from error
    refused = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    )
    if any(parameter.kind in refused for parameter in parameters):
        raise LoadFailed("run() cannot accept positional-only arguments, *args, or **kwargs.")
    if not parameters:
        raise LoadFailed("run() needs to accept an argument for input data.")
    data, *others = parameters
    if data.kind is inspect.Parameter.KEYWORD_ONLY:
        raise LoadFailed("run() needs to accept its input data as a positional argument.")
    for parameter in others:
        if parameter.default is inspect.Parameter.empty:
            raise LoadFailed(
                f"run() has a second argument without a default: {parameter.name!r}. It is called with the request "
                f"body as {data.name!r} and nothing else."
            )
