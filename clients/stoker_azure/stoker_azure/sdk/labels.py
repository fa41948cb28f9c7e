"""What objects say of themselves: tags and properties, searching by them, and how an object is printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["Shown", "Wanted", "carries", "labels"]

_SECRET: Final = re.compile(r"password|passphrase|secret|token|(?:^|_)key$")

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


class Shown:
    """Prints as `Class(attribute=value, …)`: what is set, and no secrets."""

    def __repr__(self) -> str:
        said = ", ".join(
            f"{name}={value!r}"
            for name, value in self._facts().items()
            if value is not None and not _SECRET.search(name)
        )
        return f"{type(self).__name__}({said})"

    def _facts(self) -> Mapping[str, Any]:
        """What is printed: its public attributes."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}
