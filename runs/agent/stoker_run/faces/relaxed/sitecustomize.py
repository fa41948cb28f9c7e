"""In a relaxed run: names that numpy and TensorFlow had when the script was written are there again.

Python imports a module of this name at its start. The one that it would have imported otherwise is imported too.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Optional

_GONE = {"float": float, "int": int, "bool": bool, "object": object, "str": str, "complex": complex}
_RENAMED = {"float_": "float64", "complex_": "complex128", "unicode_": "str_", "NaN": "nan", "Inf": "inf"}
_REPORTED = "STOKER_RELAXED_SAID"
_TENSORFLOW_1 = "STOKER_TENSORFLOW_1"
_TENSORFLOW_1_SAID = "STOKER_TENSORFLOW_1_SAID"


class _Finder(importlib.abc.MetaPathFinder):
    """Adds them as soon as a module has been imported."""

    def __init__(self, module: str, change: Callable[[Any], None]) -> None:
        self._module = module
        self._change = change

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Any:
        """Find the module as it would be found, and once."""
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def add_former_names(numpy: Any) -> None:
    """Give numpy the names that it has no more, and say so once."""
    added = [name for name in _GONE if name not in vars(numpy)]
    for name in added:
        setattr(numpy, name, _GONE[name])
    for name, now in _RENAMED.items():
        if name not in vars(numpy):
            setattr(numpy, name, getattr(numpy, now))
    if added and _REPORTED not in os.environ:
        # Not once more in each process that the script starts.
        os.environ[_REPORTED] = "1"
        names = ", ".join("numpy." + name for name in added)
        sys.stderr.write(
            f"stoker_run: numpy {numpy.__version__} has no {names}; they are there for this run\n"
        )


def _install_v1_api(tensorflow: Any) -> None:
    # Here, where something imports TensorFlow: most processes of a run do not.
    from stoker_base.tensorflow_v1 import install_v1_api

    install_v1_api(tensorflow)
    if _TENSORFLOW_1_SAID not in os.environ:
        os.environ[_TENSORFLOW_1_SAID] = "1"
        sys.stderr.write(
            f"stoker_run: tensorflow is tensorflow.compat.v1 of TensorFlow {tensorflow.__version__}\n"
        )


def _next() -> None:
    here = Path(__file__).resolve().parent
    rest = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _Finder("numpy", add_former_names))
if os.environ.get(_TENSORFLOW_1):
    sys.meta_path.insert(0, _Finder("tensorflow", _install_v1_api))
_next()
