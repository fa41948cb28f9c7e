"""Provides the modules of `ts`, TorchServe's package for handlers, in the process of a handler."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_OURS: Final = "stoker_torchserve."
_NAME: Final = "ts"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != _NAME:
            return None
        found = importlib.util.find_spec(_OURS + fullname)
        if found is None:
            raise ModuleNotFoundError(
                f"{fullname} is a part of TorchServe that Stoker does not provide", name=fullname
            )
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=found.origin, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        # An import ends with what stands here, as for any module that replaces itself.
        sys.modules[module.__name__] = importlib.import_module(_OURS + module.__name__)


_FINDER: Final = _Finder()


def install() -> None:
    """Provide `ts`, before a TorchServe that is installed; a second call changes nothing."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Stop providing `ts`, and forget what has been imported under that name."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in [name for name in sys.modules if name.partition(".")[0] == _NAME]:
        del sys.modules[name]
