"""Scripts written for TensorFlow 1 on today's TensorFlow: `import tensorflow` gives them `tensorflow.compat.v1`.

A script needs this if its text uses a name that only version 1 of TensorFlow's API has.
"""

from __future__ import annotations

import ast
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from stoker.errors import LoadFailed
from stoker_base.tensorflow_v1 import install_v1_api

logger = logging.getLogger(__name__)

_TENSORFLOW: Final = "tensorflow"
_KERAS: Final = ("keras", "tf_keras")


class TensorflowUse(Struct, frozen=True):
    """A name of TensorFlow's API in a script.

    Attributes:
        name: The name without the module's: `train.import_meta_graph`; empty for the import itself.
    """

    name: str
    file: Path
    line: int

    def __str__(self) -> str:
        return f"tf.{self.name} ({self.file.name}, line {self.line})"


def read_uses(script: Path, folders: Sequence[str]) -> list[TensorflowUse]:
    """Return the uses of TensorFlow in a script and in the modules in `folders` that it imports; Keras counts too.

    Files that Python cannot read are left out: their import raises the error.
    """
    uses: list[TensorflowUse] = []
    waiting, seen = [script], {script}
    while waiting:
        file = waiting.pop()
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        uses += _uses_in(tree, file)
        for module in _imported(tree):
            if module[0].split(".")[0] in _KERAS and not module[1] and _keras_uses_tensorflow():
                uses.append(TensorflowUse("", file, 1))
            found = set(_files(module, file.parent, folders)) - seen
            seen |= found
            waiting += sorted(found)
    return uses


def first_v1_use(uses: Sequence[TensorflowUse], tensorflow: Any) -> TensorflowUse | None:
    """Return the first name that only version 1 of the API has; None if the script needs no help."""
    for use in uses:
        if use.name.split(".")[0] == "contrib":
            raise LoadFailed(
                f"the script uses {use}. TensorFlow 2 has no tf.contrib, not even for scripts of TensorFlow 1; "
                "replace it (tf.layers and tf.nn have most of it), or run the script where TensorFlow 1 is."
            )
    return next((use for use in uses if use.name and _is_only_in_v1(use.name, tensorflow)), None)


def install_version_1(tensorflow: Any, reason: str) -> None:
    """Let `import tensorflow` give the API of version 1 in this process from now on, and log it."""
    install_v1_api(tensorflow)
    logger.info("TensorFlow %s is given as tensorflow.compat.v1: %s", tensorflow.__version__, reason)


def _is_only_in_v1(name: str, tensorflow: Any) -> bool:
    new, old = tensorflow, tensorflow.compat.v1
    for part in name.split("."):
        # Further names are attributes of a class or a function.
        if not isinstance(new, ModuleType):
            return False
        old = _member(old, part)
        new = _member(new, part)
        if old is None:
            return False
        if new is None:
            return True
    return False


def _member(module: Any, name: str) -> Any:
    try:
        return getattr(module, name, None)
    except Exception:  # noqa: BLE001  # a lazily loaded module may raise any exception
        return None


def _keras_uses_tensorflow() -> bool:
    return os.environ.get("KERAS_BACKEND", _TENSORFLOW) == _TENSORFLOW


def _uses_in(tree: ast.Module, file: Path) -> list[TensorflowUse]:
    bound: defaultdict[str, set[str]] = defaultdict(set)
    uses: list[TensorflowUse] = []
    for node in ast.walk(tree):
        for alias, name in _bindings(node):
            bound[alias].add(name)
            uses.append(TensorflowUse(name, file, node.lineno))  # type: ignore[attr-defined]  # an import
    # A script that chooses its API itself, by a second import or an assignment, needs no help.
    chosen = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for alias, names in bound.items():
        if alias in chosen or any(name.split(".")[0] == "compat" for name in names):
            chosen.add(alias)
    for chain, line in _attribute_chains(tree):
        first, *rest = chain
        if rest and first not in chosen:
            uses += [
                TensorflowUse(".".join([*([name] if name else []), *rest]), file, line)
                for name in bound.get(first, ())
            ]
    return sorted(uses, key=lambda use: use.line)


def _bindings(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, each with its name within TensorFlow."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top, _, below = alias.name.partition(".")
            if top == _TENSORFLOW:
                yield (alias.asname, below) if alias.asname else (top, "")
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        top, _, below = node.module.partition(".")
        if top == _TENSORFLOW:
            for alias in node.names:
                yield alias.asname or alias.name, f"{below}.{alias.name}" if below else alias.name


def _attribute_chains(tree: ast.Module) -> Iterator[tuple[list[str], int]]:
    """Yield every `a.b.c` in the text, and each of its beginnings, with its line."""
    for node in ast.walk(tree):
        names: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            names.append(inner.attr)
            inner = inner.value
        if names and isinstance(inner, ast.Name):
            yield [inner.id, *reversed(names)], inner.lineno


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield modules that the text may import, each with the number of its leading dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module, node.level
            for alias in node.names:
                yield f"{module}.{alias.name}".strip("."), node.level


def _files(module: tuple[str, int], here: Path, folders: Sequence[str]) -> Iterator[Path]:
    """Yield the files of a module and of its packages that are in these folders."""
    name, dots = module
    bases = [Path(here, *[".."] * (dots - 1))] if dots else [Path(folder) for folder in folders]
    parts = name.split(".") if name else []
    for base in bases:
        for end in range(1, len(parts) + 1):
            place = base.joinpath(*parts[:end])
            for file in (place.with_name(place.name + ".py"), place / "__init__.py"):
                if file.is_file():
                    yield file
