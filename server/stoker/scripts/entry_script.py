"""The entry-script contract of Azure Machine Learning: `init()` once, then `run()`. Advice where loading fails."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from importlib.machinery import SOURCE_SUFFIXES, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from stoker.batch_mark import BatchedInput, batched_input
from stoker.errors import LoadFailed
from stoker.scripts.arguments import find_stand_ins
from stoker.scripts.imports import PROVIDED_BY_AZURE
from stoker.system.extensions import find_extension
from stoker.system.extras import how_to_install
from stoker.system.forks import call_in_this_process
from stoker.system.logs import frames_of_script
from stoker_base.former_names import provide_former_names

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


_AUTOML: Final = (
    "azureml.automl.dnn",
    "azureml.automl.runtime",
    "azureml.train.automl.runtime",
    "azureml.training",
)
# As pickle says it, and as its older protocols do.
_NO_CLASS: Final = re.compile(
    r"Can't get attribute .* on <module 'sklearn\.|module 'sklearn\.\S+' has no attribute"
)
_TREES: Final = "node array from the pickle has an incompatible dtype"


def load_advice(error: BaseException) -> str:
    """Say what can be done about an exception of a script, in a line; empty where nothing is known.

    Args:
        error: The exception; those that it was raised from, or while handling, are looked at too.
    """
    for each in _chain(error):
        name = getattr(each, "name", None) or ""
        if isinstance(each, ModuleNotFoundError) and _is_below(name, _AUTOML):
            return (
                f"Advice: the model consists of classes of Azure's AutoML ({name}), whose packages ask for numpy "
                "1.23, with which a device process does not run: export the model as ONNX (AutoML's "
                "enable_onnx_compatible_models), or build the pipeline with scikit-learn, and serve that.\n"
            )
        if isinstance(each, ModuleNotFoundError) and _is_below(name, PROVIDED_BY_AZURE):
            if find_extension("azure") is None:
                return f"Advice: {name} is provided by a distribution of Stoker; {how_to_install('azure')}\n"
            return (
                f"Advice: {name} is a part of Azure's SDK that Stoker does not have: take it out of the script if it "
                "is for training, or list its package in the environment of the script.\n"
            )
        if _is_of_scikit_learn(each, name):
            return (
                f"Advice: the model was saved with another version of scikit-learn than {_scikit_learn()}, which "
                "cannot read it: name the version that saved it in the environment of the script (--environment FILE "
                "--system-managed), or load it there, and save it anew as ONNX or with this version.\n"
            )
    missing = next((each.name for each in _chain(error) if isinstance(each, ModuleNotFoundError)), None)
    if missing:
        return f"Advice: {missing} is neither installed nor beside the script; stoker doctor lists what is missing.\n"
    return ""


def _is_of_scikit_learn(error: BaseException, name: str) -> bool:
    text = str(error)
    return (
        # What belongs to a pickle: other names are missing because nothing of scikit-learn is there.
        (isinstance(error, ModuleNotFoundError) and name.startswith("sklearn."))
        or (isinstance(error, AttributeError) and _NO_CLASS.search(text) is not None)
        or (isinstance(error, ValueError) and _TREES in text)
    )


def _scikit_learn() -> str:
    try:
        return metadata.version("scikit-learn")
    except metadata.PackageNotFoundError:
        return "the one that is installed"


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


_MODULE: Final = "entry_module"
_LISTED_FILES: Final = 200


class EntryScript:
    """A script that has been executed.

    Attributes:
        batched: What `run` takes if it is decorated with `stoker.batched`, else None.
        shutdown: The script's `shutdown`, which scripts for mini-batches may have, or None.
        raw: Whether it, or a module that it imported, has used `rawhttp`, which is for the whole process.
    """

    def __init__(self, path: Path, model_dir: Path) -> None:
        """Execute the script.

        Raises:
            LoadFailed: It cannot be executed, or lacks `init` or `run`. The message holds the traceback and
                the listing of the model folder.
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

    A folder `__pycache__` beside it would be in the folder of somebody's model, and what is in that is taken for the
    script's for as long as its time, in whole seconds, and its size are the same.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Say nothing, which is what keeps Python from looking for what it has compiled."""
        raise OSError(f"{path} is compiled anew")


def execute_script(path: Path, model_dir: Path) -> ModuleType:
    """Execute a script as the module `entry_module`; see `call_while_loading`."""
    # What is compiled already Python loads as it does.
    own = _SourceLoader(_MODULE, str(path)) if path.suffix in SOURCE_SUFFIXES else None
    spec = importlib.util.spec_from_file_location(_MODULE, path, loader=own)
    if spec is None or spec.loader is None or not path.is_file():
        raise LoadFailed(f"{path} is not a Python file{'' if path.exists() else ': it does not exist'}")
    module = importlib.util.module_from_spec(spec)
    # Pickle and dataclasses look a class's module up by name.
    sys.modules[_MODULE] = module
    loader = spec.loader
    call_while_loading(lambda: loader.exec_module(module), f"{path} cannot be imported", model_dir)
    return module


def call_while_loading(function: Callable[[], _Result], failure: str, model_dir: Path) -> _Result:
    """Call code of a script that is being loaded.

    Raises:
        LoadFailed: It raised. The message is `failure`, the traceback and the listing of the model folder.
    """
    try:
        return call_in_this_process(function)
    # Whatever it is: a script that exits while it loads, or has itself cancelled, has failed to load.
    except BaseException as error:
        frames = frames_of_script(error)
        lines = [*traceback.format_exception(type(error), error, frames), load_advice(error)]
        raise LoadFailed(f"{failure}:\n{''.join(lines)}{_listing(model_dir)}") from error


def _listing(model_dir: Path) -> str:
    if not model_dir.is_dir():
        return f"The model folder {model_dir} does not exist."
    # Without a folder of its own the model's is the script's, which may be somebody's home.
    found = itertools.islice(_files(model_dir), _LISTED_FILES + 1)
    files = sorted(str(path.relative_to(model_dir)) for path in found)
    more = "\n  and more" if len(files) > _LISTED_FILES else ""
    names = "".join(f"\n  {name}" for name in files[:_LISTED_FILES]) or " nothing"
    return f"The model folder {model_dir} holds:{names}{more}"


def _files(folder: Path) -> Iterator[Path]:
    """The files in a folder and below, but for hidden ones and what Python has compiled."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def _function(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise LoadFailed(f"User script at {path} does not have a {name}() function defined.")
    return function  # type: ignore[no-any-return]  # narrowed by callable()
