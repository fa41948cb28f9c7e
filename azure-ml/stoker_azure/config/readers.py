"""Readers of values in Azure's files, which take no texts for numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def whole_number(low: int, high: int) -> Callable[[Any], int]:
    """Return a reader of whole numbers from `low` to `high` that takes no texts, as Azure does."""

    def read(value: Any) -> int:
        """Read a value as the function around says."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not float(value).is_integer() or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return read


def read_positive(value: Any) -> float:
    """Read a number above 0; texts are not taken."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError("must be a number above 0")
    return float(value)


def read_texts(value: Any) -> dict[str, str]:
    """Read a mapping of names to texts; numbers become texts."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be an object of names and texts")
    if not all(isinstance(content, str | int | float) for content in value.values()):
        raise ValueError("must have texts as values")
    return {name: str(content) for name, content in value.items()}
