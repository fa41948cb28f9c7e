"""Widths of classes: how many attributes of `self` a class has. Plain records, settings among them, do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from tests.house.sources import Module

_RECORDS: Final = ("dataclass", "Struct")
"""The words in the head of a class whose annotations are its attributes."""


def widths_of_classes(modules: Iterable[Module]) -> list[tuple[int, str]]:
    """Return the number of attributes and the name of each class that is no plain record, the widest first."""
    widths = [
        (len(attributes), f"{module.path}: {node.name}")
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and (attributes := set(_assigned_attributes(node)))
    ]
    return sorted(widths, key=lambda width: (-width[0], width[1]))


def _assigned_attributes(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that methods assign; a record whose methods assign none is plain and has none here."""
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            yield inner.attr
            if any(
                word in ast.unparse(one) for one in (*node.decorator_list, *node.bases) for word in _RECORDS
            ):
                yield from _fields(node)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
