"""Tags and properties: labels of models and services, and searching by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["Wanted", "carries", "labels"]

Wanted = Mapping[str, Any] | Iterable[str | Sequence[str]]
"""What is searched for: `KEY`, `[KEY, VALUE]`, several of both, or a mapping."""


def labels(given: Mapping[str, Any] | None) -> dict[str, str]:
    """The labels as texts, as Azure keeps them."""
    return {str(name): str(value) for name, value in (given or {}).items()}


def carries(own: Mapping[str, str], wanted: Wanted | None) -> bool:
    """Whether all labels that are wanted are there."""
    items: Iterable[Any] = wanted.items() if isinstance(wanted, Mapping) else wanted or ()
    for item in items:
        key, *value = [item] if isinstance(item, str) else item
        if key not in own or (value and own[key] != str(value[0])):
            return False
    return True
