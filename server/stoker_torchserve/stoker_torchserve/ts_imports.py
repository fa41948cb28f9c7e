"""Provides the modules of `ts`, TorchServe's package for handlers, in the process of a handler.

A handler that imports what is not provided is refused before it runs, even where it would import it in a request.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

from stoker.errors import LoadFailed

_OURS: Final = "stoker_torchserve."
_NAME: Final = "ts"
_STREAMS: Final = "answers are not streamed: return them from handle(), or yield them in an entry script"
_SEVERAL_GPUS: Final = "a model on several GPUs needs an entry script, with --device cuda:0+cuda:1"
_INSTEAD: Final = {
    "ts.handler_utils.distributed": _SEVERAL_GPUS,
    "ts.handler_utils.hf_batch_streamer": _STREAMS,
    "ts.handler_utils.micro_batching": "set batchSize, and requests share calls of handle()",
    "ts.handler_utils.utils.import_class": "use importlib.import_module",
    "ts.handler_utils.utils.send_intermediate_predict_response": _STREAMS,
    "ts.metrics.metrics_store": "use context.metrics",
    "ts.protocol": _STREAMS,
    "ts.torch_handler.distributed": _SEVERAL_GPUS,
    "ts.torch_handler.request_envelope": "unpack the envelope in the handler",
}
"""Remedies, by names of TorchServe or of what holds them."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != _NAME:
            return None
        found = importlib.util.find_spec(_OURS + fullname)
        if found is None:
            raise ModuleNotFoundError(_refusal(fullname), name=fullname)
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


def check_imports(folder: Path, modules: Iterable[str]) -> None:
    """Check what modules of an archive import from `ts`, and so on for the archive's modules that they import.

    Raises:
        LoadFailed: One imports what is not provided, outside a `try` that expects that.
    """
    pending, seen = list(modules), set()
    while pending:
        module = pending.pop()
        if not module:
            continue
        path = folder.joinpath(*module.split("."))
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file in seen or not file.is_file():
                continue
            seen.add(file)
            for name in _imported_names(file):
                if name.partition(".")[0] != _NAME:
                    pending += [name, name.rpartition(".")[0]]
                elif not _is_provided(name):
                    raise LoadFailed(f"{file.relative_to(folder)} imports {_refusal(name)}")


def _imported_names(file: Path) -> list[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        # Its import says where it is wrong.
        return []
    return [name for name in _names_below(tree) if not name.startswith(".")]


def _names_below(node: ast.AST) -> Iterator[str]:
    """The modules, and names of modules, that code imports, but for those whose absence it expects."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            module = child.module or ""
            for alias in child.names:
                yield module if alias.name == "*" else f"{module}.{alias.name}"
        elif not (isinstance(child, ast.Try) and "ImportError" in _caught_names(child)):
            yield from _names_below(child)


def _caught_names(node: ast.Try) -> set[str]:
    names = {
        name.id
        for handler in node.handlers
        if handler.type is not None
        for name in ast.walk(handler.type)
        if isinstance(name, ast.Name)
    }
    return names | {"ImportError"} if "ModuleNotFoundError" in names else names


def _is_provided(name: str) -> bool:
    """Whether a name of TorchServe is a module here, or in one."""
    module, _, attribute = name.rpartition(".")
    return _is_module(name) or (
        _is_module(module) and hasattr(importlib.import_module(_OURS + module), attribute)
    )


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(_OURS + name) is not None
    except ModuleNotFoundError:
        # The package above it is missing, or is a plain module.
        return False


def _refusal(name: str) -> str:
    instead = next((words for prefix, words in _INSTEAD.items() if f"{name}.".startswith(f"{prefix}.")), "")
    return f"{name}, a part of TorchServe that Stoker does not provide{instead and f': {instead}'}"
