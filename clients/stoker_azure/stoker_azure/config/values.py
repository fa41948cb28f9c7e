"""Readers of values in configurations for Azure.

Each returns what is used, or raises ValueError with what is allowed ("must be ...").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["flag", "positive", "text", "texts", "whole"]


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def whole(low: int, high: int) -> Callable[[Any], int]:
    """A reader of whole numbers within these bounds."""

    def check(value: Any) -> int:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not float(value).is_integer() or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return check


def positive(value: Any) -> float:
    """A number above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError("must be a number above 0")
    return float(value)


def text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def texts(value: Any) -> dict[str, str]:
    """Texts by name."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be an object of names and texts")
    if not all(isinstance(content, str | int | float) for content in value.values()):
        raise ValueError("must have texts as values")
    return {name: str(content) for name, content in value.items()}
