"""Rows of JSON to put beside a row, to see whether a script lets rows influence each other.

The kinds are those of `stoker.isolation.companions`, as far as JSON can hold them: it has no NaN and no infinities.
A number that is too large for a float32 becomes an infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

_LONG: Final = "stoker " * 143
_FOREIGN: Final = "Ωмега 漢字 \U0001f525"
_INTEGERS: Final[dict[str, Callable[[int], int]]] = {
    "zero": lambda _: 0,
    "large": lambda number: 1000 * number,
    "huge": lambda _: 2**31 - 1,
    "negative": lambda _: -1_000_000,
}
_FRACTIONS: Final[dict[str, Callable[[float], float]]] = {
    "zero": lambda _: 0.0,
    "large": lambda number: 1000.0 * number,
    "huge": lambda _: 1e300,
    "negative": lambda _: -1e6,
    "denormal": lambda _: 1e-300,
}
_TEXTS: Final[dict[str, Callable[[str], str]]] = {
    "empty": lambda _: "",
    "long": lambda text: f"{text} {_LONG}",
    "foreign": lambda _: _FOREIGN,
}
TELLING: Final = ("large", "huge", "long")
"""The kinds to try if each call takes long."""


def companions_of(row: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a row of JSON values, each with all of its numbers or texts replaced, and the name of its kind.

    Types stay, because only rows of the same types are merged. Kinds that would change nothing are left out.
    """
    for kind in dict.fromkeys((*TELLING, *_FRACTIONS, *_TEXTS)):
        made = _replaced(kind, row)
        if made != row:
            yield kind, made


def _replaced(kind: str, value: Any) -> Any:
    match value:
        case dict():
            return {key: _replaced(kind, item) for key, item in value.items()}
        case list():
            return [_replaced(kind, item) for item in value]
        case bool() | None:
            return value
        case int() if kind in _INTEGERS:
            return _INTEGERS[kind](value)
        case float() if kind in _FRACTIONS:
            return _FRACTIONS[kind](value)
        case str() if kind in _TEXTS:
            return _TEXTS[kind](value)
        case _:
            return value
