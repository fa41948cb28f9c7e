"""In a relaxed run: names that numpy had when the script was written are there again.

Python imports a module of this name at its start. The one that it would have imported otherwise is imported too.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

_GONE = {"float": float, "int": int, "bool": bool, "object": object, "str": str, "complex": complex}
_RENAMED = {"float_": "float64", "complex_": "complex128", "unicode_": "str_", "NaN": "nan", "Inf": "inf"}
_SAID = "STOKER_RELAXED_SAID"


class _Finder(importlib.abc.MetaPathFinder):
    """Adds them as soon as numpy has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Any:
        """Find numpy as it would be found, and once."""
        if name != "numpy":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _add(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _add(numpy: Any) -> None:
    added = [name for name in _GONE if name not in vars(numpy)]
    for name in added:
        setattr(numpy, name, _GONE[name])
    for name, now in _RENAMED.items():
        if name not in vars(numpy):
            setattr(numpy, name, getattr(numpy, now))
    if added and _SAID not in os.environ:
        # Not once more in each process that the script starts.
        os.environ[_SAID] = "1"
        names = ", ".join("numpy." + name for name in added)
        sys.stderr.write(
            f"stoker_run: numpy {numpy.__version__} has no {names}; they are there for this run\n"
        )


def _next() -> None:
    here = Path(__file__).resolve().parent
    rest = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _Finder())
_next()
