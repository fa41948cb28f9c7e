"""The entry-script contract of Azure Machine Learning: the script is executed, then `init()` is called once."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import SOURCE_SUFFIXES, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from stoker.batch_mark import BatchedInput, batched_input
from stoker.errors import LoadFailed
from stoker.scripts.load_advice import load_advice
from stoker.scripts.stand_ins import find_stand_ins
from stoker.system.forks import call_in_this_process
from stoker.system.logs import frames_of_script
from stoker_base.former_names import provide_former_names

logger = logging.getLogger(__name__)


_Result = TypeVar("_Result")


_MODULE: Final = "entry_module"
_LISTED_FILES: Final = 200


class EntryScript:
    """A script that has been executed.

    Attributes:
        batched: What `run` takes if it is decorated with `stoker.batched`, else None.
        shutdown: The script's `shutdown`, which scripts for mini-batches may have, or None.
        raw: Whether the script, or a module that it imported, has used `rawhttp`. That is known for the process only.
    """

    def __init__(self, path: Path, model_dir: Path) -> None:
        """Execute the script.

        Raises:
            LoadFailed: The script cannot be executed, or lacks `init` or `run`. The message has the traceback and the
                files of the model folder.
        """
        self._path = path
        self._model_dir = model_dir
        stand_ins = find_stand_ins()
        if stand_ins is not None:
            stand_ins.install()
        provide_former_names(logger.info)
        module = execute_script(path, model_dir)
        self._init = _function(module, "init", path)
        self.run = _function(getattr(module, "driver_module", module), "run", path)
        self.shutdown: Callable[[], Any] | None = getattr(module, "shutdown", None)
        self.batched: BatchedInput | None = batched_input(self.run)
        self.raw = stand_ins is not None and stand_ins.raw_http_requested()

    def initialise(self, finish: Callable[[Any], Any]) -> None:
        """Call `init`."""
        call_while_loading(lambda: finish(self._init()), f"init() of {self._path} raised", self._model_dir)


class _SourceLoader(SourceFileLoader):
    """Compiles a script each time it is executed.

    Python would write a folder `__pycache__` into the folder of somebody's model. It would also take code from there
    while the size and the time of the script, in whole seconds, stay the same.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Refuse, so that Python does not look for compiled code."""
        raise OSError(f"{path} is compiled anew")


def execute_script(path: Path, model_dir: Path) -> ModuleType:
    """Execute a script as the module `entry_module`; see `call_while_loading`."""
    # Python's own loader takes compiled scripts.
    own = _SourceLoader(_MODULE, str(path)) if path.suffix in SOURCE_SUFFIXES else None
    spec = importlib.util.spec_from_file_location(_MODULE, path, loader=own)
    if spec is None or spec.loader is None or not path.is_file():
        raise LoadFailed(f"{path} is not a Python file{'' if path.exists() else ': it does not exist'}")
    module = importlib.util.module_from_spec(spec)
    # Pickle and dataclasses find the module of a class by its name.
    sys.modules[_MODULE] = module
    loader = spec.loader
    call_while_loading(lambda: loader.exec_module(module), f"{path} cannot be imported", model_dir)
    return module


def call_while_loading(function: Callable[[], _Result], failure: str, model_dir: Path) -> _Result:
    """Call code of a script that is being loaded.

    Raises:
        LoadFailed: The code raised. The message is `failure`, the traceback and the files of the model folder.
    """
    try:
        return call_in_this_process(function)
    # SystemExit and CancelledError too: a script that exits while it loads has failed to load.
    except BaseException as error:
        frames = frames_of_script(error)
        lines = [*traceback.format_exception(type(error), error, frames), load_advice(error)]
        raise LoadFailed(f"{failure}:\n{''.join(lines)}{_listing(model_dir)}") from error


def _listing(model_dir: Path) -> str:
    if not model_dir.is_dir():
        return f"The model folder {model_dir} does not exist."
    # A model without a folder of its own has that of its script, which may be somebody's home: list only a few.
    found = itertools.islice(_files(model_dir), _LISTED_FILES + 1)
    files = sorted(str(path.relative_to(model_dir)) for path in found)
    more = "\n  and more" if len(files) > _LISTED_FILES else ""
    names = "".join(f"\n  {name}" for name in files[:_LISTED_FILES]) or " nothing"
    return f"The model folder {model_dir} holds:{names}{more}"


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, except hidden files and compiled code."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def _function(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise LoadFailed(f"User script at {path} does not have a {name}() function defined.")
    return function  # type: ignore[no-any-return]  # narrowed by callable()
