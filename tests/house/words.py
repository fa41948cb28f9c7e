"""Names and sentences that a stranger does not understand: participles and questions for nouns and verbs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from tests.house.sources import Module

_RIDDLES: Final = frozenset(
    {"told", "said", "asked", "had", "some", "what", "which", "who", "whom", "whose", "whoever", "whatever"}
    | {"everything", "something", "anything"}
)
_PARTICIPLES: Final = frozenset({"held", "ended", "came"})
"""Words that are no name of a function or class by themselves."""
_QUESTION: Final = re.compile(r"\s*(What|Which|Who|Whose|Whoever|Whatever)\b(?!.*\?)")
"""A beginning that makes a sentence a riddle, unless it is a question."""
_QUESTION_IN_COMMENT: Final = re.compile(f"#{_QUESTION.pattern}")
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_NAMES: Final[dict[type[ast.AST], str]] = {
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.arg: "arg",
    ast.Name: "id",
    ast.Attribute: "attr",
}
"""The nodes that define a name, unless they read or delete it, and their field with it."""


def find_riddles_in_names(module: Module) -> Iterator[str]:
    """Yield the place of each name of a function, class, argument, variable or attribute with such a word."""
    for node in module.nodes:
        field = _NAMES.get(type(node))
        if field is None or isinstance(getattr(node, "ctx", None), ast.Load | ast.Del):
            continue
        name = getattr(node, field)
        words = _words_of(name)
        is_bare = isinstance(node, _DEFINITIONS) and len(words) == 1 and words[0] in _PARTICIPLES
        if is_bare or not _RIDDLES.isdisjoint(words) or name.startswith("test_that_"):
            yield f"{module.path}:{node.lineno}: {name}"


@cache
def _words_of(name: str) -> list[str]:
    return re.findall("[a-z]+", re.sub("([A-Z])", r" \1", name).lower())


def find_riddles_in_texts(module: Module) -> Iterator[str]:
    """Yield the place of each docstring, other text and comment that begins with What, Which, Who or Whose."""
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _QUESTION.match(node.value):
            yield f"{module.path}:{node.lineno}: {node.value[:80]!r}"
    # Few files have one, and to find comments takes long.
    comments = module.comments if _QUESTION_IN_COMMENT.search(module.text) else []
    for row, _, comment in comments:
        if _QUESTION.match(comment.lstrip("#")):
            yield f"{module.path}:{row}: {comment[:80]}"
