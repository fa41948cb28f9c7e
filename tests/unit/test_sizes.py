"""Functions of the distributions that users run fit a screen."""

import ast
from collections.abc import Iterator
from pathlib import Path

import stoker
import stoker_azure
import stoker_base
import stoker_client
import stoker_cluster
import stoker_run
import stoker_runs
import stoker_torchserve

PACKAGES = [
    Path(str(package.__file__)).parent
    for package in (
        stoker,
        stoker_azure,
        stoker_base,
        stoker_client,
        stoker_cluster,
        stoker_run,
        stoker_runs,
        stoker_torchserve,
    )
]
FUNCTION_LINES = 60
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(node: FUNCTIONS) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def only_declares_arguments(node: FUNCTIONS) -> bool:
    """Whether it is a command's `add_arguments` that decides nothing: a list, which parts would not make clearer."""
    statements = [inner for inner in ast.walk(node) if isinstance(inner, ast.stmt) and inner is not node]
    plain = all(isinstance(statement, ast.Expr | ast.Assign | ast.For) for statement in statements)
    return node.name == "add_arguments" and plain


def may_have_a_long_function(lines: list[str]) -> bool:
    """Whether more lines than a function may have lie between a `def` and the next thing that is no part of it.

    To parse all modules would take seconds; this tells nearly all that have none.
    """
    around: list[tuple[int, int]] = []
    for number, line in enumerate([*lines, "class End:"]):
        words = line.lstrip(" ")
        if words.startswith(("def ", "async def ", "class ")):
            indent = len(line) - len(words)
            while around and around[-1][0] >= indent:
                if number - around.pop()[1] > FUNCTION_LINES:
                    return True
            if not words.startswith("class "):
                around.append((indent, number))
    return False


def too_long(name: str, text: str) -> Iterator[str]:
    """The functions of a module that are longer than they may be, by both names."""
    if may_have_a_long_function(text.splitlines()):
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, FUNCTIONS))
        for node in functions:
            if lines_of(node) > FUNCTION_LINES and not only_declares_arguments(node):
                yield f"{name}: {node.name}"


def test_functions_are_short() -> None:
    """No function that does something is above 60 lines."""
    long = {
        found
        for package in PACKAGES
        for module in package.rglob("*.py")
        for found in too_long(str(module.relative_to(package)), module.read_text(encoding="utf-8"))
    }
    assert long == set()


def test_function_that_is_too_long_is_found() -> None:
    """Functions and methods are counted with their docstrings; lists of arguments may be long."""
    body = "    parser.add_argument('--a')\n" * FUNCTION_LINES
    assert list(too_long("m.py", f"def f(parser):\n{body[: body.rindex('    parser')]}")) == []
    assert list(too_long("m.py", f"async def f(parser):\n{body}")) == ["m.py: f"]
    assert list(too_long("m.py", f"def add_arguments(parser):\n{body}")) == []
    assert list(too_long("m.py", f"def add_arguments(parser):\n{body}    return 1\n")) == [
        "m.py: add_arguments"
    ]
