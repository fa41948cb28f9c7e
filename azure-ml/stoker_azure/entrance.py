"""Preparation of a process that runs code for Azure's SDK: its `azureml`, its Keras, and numpy's printing.

`python -m stoker.azure` and `import stoker.azure` are the two entrances, and do the same. Stoker's own processes
import modules of this package without entering.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, TracebackType
from typing import Any, Final

from stoker.system.logs import format_for_script, frames_of_script
from stoker_azure import finder
from stoker_azure.exceptions import AzureMLException
from stoker_azure.saved_models import READERS, SAVED_BY, hand_over

VARIABLE: Final = "STOKER_AZURE"
"""Variable that says whose `azureml` is imported: `stoker` (default), or `real`."""

_SDK: Final = "azureml"
_CORE: Final = "azureml.core"
_LEGACY_KERAS: Final = "TF_USE_LEGACY_KERAS"
_PRINTED_AS: Final = "1.25"
"""The version of numpy up to which `str(list(row))` gave plain numbers."""


@functools.cache
def enter() -> None:
    """Prepare this process for code written for Azure's SDK; a second call does nothing.

    Raises:
        ImportError: The variable `STOKER_AZURE` has another value than `stoker` and `real`, or asks for an
            `azureml-core` that is not installed.
    """
    chosen = os.environ.get(VARIABLE, "stoker")
    if chosen not in ("stoker", "real"):
        raise ImportError(f"{VARIABLE} is {chosen!r}; it can be stoker or real")
    if chosen == "real":
        if _CORE not in sys.modules and _installed_core() is None:
            raise ImportError(
                f"{VARIABLE} is real, but azureml-core is not installed; install it, or unset the variable"
            )
        finder.uninstall()
        return
    finder.install()
    _override_installed_azure()
    _choose_keras()
    _after_import("numpy", _print_numbers_plainly)
    for reader in READERS.values():
        _after_import(reader, hand_over)
    sys.excepthook = show_exception
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.events.register("post_run_cell", _advise_on_cell)


def _override_installed_azure() -> None:
    """Provide the stand-in in place of an installed `azureml-core`, and print a line that says so."""
    loaded = sys.modules.get(_CORE)
    if loaded is not None and not finder.is_provided(_CORE):
        _write_line(
            f"{_CORE} was imported before, from {getattr(loaded, '__file__', None)}: this program talks to Azure. "
            f"Import stoker.azure first, or set {VARIABLE}=real if Azure is meant"
        )
        return
    file = _installed_core()
    if file is not None:
        finder.install(before=_SDK)
        _write_line(
            f"Stoker takes the place of the azureml-core that is installed, {file}; set {VARIABLE}=real if Azure is "
            "meant"
        )


def _installed_core() -> str | None:
    """Return the file of the real `azureml.core` without importing it; None if it is not installed."""
    package = PathFinder.find_spec(_SDK)
    if package is None or package.submodule_search_locations is None:
        return None
    core = PathFinder.find_spec(_CORE, list(package.submodule_search_locations))
    return None if core is None else core.origin


def _choose_keras() -> None:
    """Choose Keras 2 if `tf-keras` is installed: code of that age saves models as its Keras did."""
    if importlib.util.find_spec("tf_keras") is None or _LEGACY_KERAS in os.environ:
        return
    os.environ[_LEGACY_KERAS] = "1"
    if "tensorflow" in sys.modules:
        _write_line(
            "tensorflow was imported before, with Keras 3; for the Keras 2 of tf-keras import stoker.azure first"
        )


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Waits for the import of a module, and then changes it.

    Args:
        change: Takes the module, before those that import from it have done so.
    """

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                self._change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]  # of this one loader alone
        return spec


def _after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Change a module now if it has been imported, else when it is."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _ImportWatch(name, change))


def _print_numbers_plainly(np: Any) -> None:
    """Make numpy print scalars as numbers, `0.5` and not `np.float64(0.5)`: callers make bodies of that text."""
    if not np.get_printoptions()["legacy"]:
        np.set_printoptions(legacy=_PRINTED_AS)


def show_exception(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    """Print an uncaught exception as `python SCRIPT` does: the first frame is the script's.

    For exceptions of Azure's SDK, the last frame is the script's too.
    """
    if isinstance(error, AzureMLException):
        sys.stderr.write(format_for_script(error))
        return
    frames = frames_of_script(error) or frames
    # Not by sys.__excepthook__, which looks for the lines of a notebook's cells in files.
    traceback.print_exception(kind, error.with_traceback(frames), frames)
    _write_line(advise(error))


def _advise_on_cell(result: Any) -> None:
    """Print advice below the traceback of a notebook's cell."""
    _write_line(advise(result.error_in_exec))


def advise(error: BaseException | None) -> str:
    """Return advice on an exception of code for Azure's SDK; empty if there is none."""
    keras: ModuleType | None = sys.modules.get("keras")
    was_refused = isinstance(error, ValueError) and "legacy SavedModel format" in str(error)
    if keras is not None and (was_refused or getattr(error, SAVED_BY, "") == "tf_keras"):
        return (
            f"the model was saved by Keras 2, and Keras {getattr(keras, '__version__', '3')} does not load it: "
            "install Stoker's extra keras2, or its tf-keras alone (pip install tf-keras), and run this again"
        )
    return ""


def _write_line(sentence: str) -> None:
    if sentence:
        sys.stderr.write(f"stoker.azure: {sentence}\n")
