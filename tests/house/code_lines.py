"""Lines of code: those with a token that is no docstring, no comment and no import."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from typing import Final

from tests.house.sources import Module, product_modules

_NO_CODE: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def count_code_lines(module: Module) -> int:
    """Return the number of lines of a module with code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def code_lines_by_place() -> Counter[str]:
    """Return the lines of code outside tests by package."""
    lines: Counter[str] = Counter()
    for module in product_modules():
        lines[module.place] += count_code_lines(module)
    return lines
