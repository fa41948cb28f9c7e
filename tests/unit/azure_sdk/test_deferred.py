"""Modules of the SDK's stand-in that are loaded when they are first used."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

from stoker_azure.sdk import deferred


@pytest.mark.parametrize("name", deferred.__all__)
def test_each_name_is_the_module_that_type_checkers_see(name: str) -> None:
    """What is imported for annotations is what is loaded when the program runs."""
    module = getattr(deferred, name)
    assert isinstance(module, ModuleType)
    assert _for_type_checkers()[name] == module.__name__


def test_there_are_no_other_names() -> None:
    """Each name for type checkers is one of these, and what is misspelt is missing as ever."""
    assert sorted(_for_type_checkers()) == deferred.__all__
    assert not hasattr(deferred, "modle")


def test_imports_are_put_off_nowhere_else() -> None:
    """No function of the package imports anything."""
    package = Path(str(deferred.__file__)).parent
    putting_off = {
        file.name
        for file in package.rglob("*.py")
        for function in ast.walk(ast.parse(file.read_text()))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function))
    }
    assert putting_off == set()


def _for_type_checkers() -> dict[str, str]:
    """The modules that are imported under `TYPE_CHECKING`, by their names."""
    tree = ast.parse(Path(str(deferred.__file__)).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: f"{statement.module}.{alias.name}"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
