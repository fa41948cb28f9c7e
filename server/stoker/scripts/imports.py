"""Imports of an entry script, read from its code without running it, and those that an interpreter lacks."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

PROVIDED_BY_AZURE: Final = ("azureml", "azureml_inference_server_http", "inference_schema")
"""Packages whose modules `stoker_azure` provides to scripts."""
PROVIDED_FOR_TRITON: Final = "triton_python_backend_utils"
"""The module that a `model.py` of Triton's Python backend imports."""
PROVIDED_FOR_TORCHSERVE: Final = "ts"
"""The package whose modules `stoker_torchserve` provides to TorchServe's handlers."""

_ON_THE_WAY: Final = ("init", "run", "shutdown")
"""Functions that the server calls, so their imports are needed."""
_CATCH_MISSING: Final = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))
_PROBE: Final = (
    "import json, sys; from importlib.util import find_spec; "
    "print(json.dumps([name for name in json.loads(sys.argv[1]) if find_spec(name) is None]))"
)
_PROBE_TIMEOUT_S: Final = 60


class Import(Struct, frozen=True):
    """A top-level package that a script, or a module beside it, imports.

    Attributes:
        name: The package, `a` of `import a.b`.
        needed: Whether the script fails without the package: the import runs when the script is loaded or called, and
            no handler catches its ImportError.
    """

    name: str
    place: str
    needed: bool


def read_imports(script: Path, folders: Sequence[Path]) -> list[Import]:
    """List the packages that a script and its own modules import, each with the place where it is needed first.

    Args:
        folders: The folders of its own modules, whose imports are listed too.

    Raises:
        SyntaxError: The script is no valid Python.
        OSError: It cannot be read.
    """
    found: dict[str, Import] = {}
    waiting, seen = [(script, True)], {script}
    while waiting:
        file, needed = waiting.pop(0)
        try:
            tree = ast.parse(file.read_bytes(), str(file))
        except SyntaxError:
            if file == script:
                raise
            continue
        for name, line, is_needed in _imports_of(tree, is_needed=needed):
            own = _own_module(name, folders)
            if own is not None:
                if own.is_file() and own not in seen:
                    seen.add(own)
                    waiting.append((own, is_needed))
                continue
            top = name.partition(".")[0]
            known = found.get(top)
            if known is None or (is_needed and not known.needed):
                found[top] = Import(top, f"{file.name}:{line}", is_needed)
    return list(found.values())


def _own_module(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of a module of the script's own, or the folder of its package; None for installed modules."""
    for folder in folders:
        path = folder.joinpath(*name.split("."))
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                return file
        package = folder / name.partition(".")[0]
        if package.is_dir() and any(package.glob("*.py")):
            return package
    return None


def _imports_of(node: ast.AST, *, is_needed: bool) -> Iterator[tuple[str, int, bool]]:
    """Yield the absolute imports below a node: the module, the line, and whether the script fails without it."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno, is_needed) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.module is not None and not node.level:
            yield node.module, node.lineno, is_needed
    elif isinstance(node, ast.Try):
        caught = any(map(_catches_missing, node.handlers))
        yield from _imports_in(node.body, is_needed=is_needed and not caught)
        # A handler imports a substitute for the missing package.
        yield from _imports_in(node.handlers, is_needed=False)
        yield from _imports_in([*node.orelse, *node.finalbody], is_needed=is_needed)
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        yield from _imports_in(node.orelse, is_needed=is_needed)
    else:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            is_needed = is_needed and getattr(node, "name", "") in _ON_THE_WAY
        yield from _imports_in(ast.iter_child_nodes(node), is_needed=is_needed)


def _imports_in(nodes: Iterable[ast.AST], *, is_needed: bool) -> Iterator[tuple[str, int, bool]]:
    for node in nodes:
        yield from _imports_of(node, is_needed=is_needed)


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(each, ast.Name) and each.id in _CATCH_MISSING for each in types)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def find_missing(imports: Iterable[Import], interpreter: Path, provided: Sequence[str]) -> list[Import]:
    """Return the imports that an interpreter cannot resolve. None of the packages is imported.

    Raises:
        OSError: The interpreter cannot be started.
        subprocess.SubprocessError: It fails, or takes too long.
    """
    checked = {each.name: each for each in imports if each.name not in provided}
    command = [str(interpreter), "-P", "-c", _PROBE, json.dumps(list(checked))]
    answer = subprocess.run(command, check=True, capture_output=True, timeout=_PROBE_TIMEOUT_S, text=True)
    return [checked[name] for name in json.loads(answer.stdout)]
