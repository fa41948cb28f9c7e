"""Quotes texts from callers in messages, shortened to 100 characters.

A caller's text may be 100 MB long, and a message is copied several times on its way into the answer and the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Any, Final

__all__ = ["cut", "json_beginning", "quoted", "quoted_names"]

_MAX_CHARS: Final = 100
_MORE: Final = "…"


def cut(value: Any) -> str:
    """Return the beginning of a text; for a list or object only its type."""
    match value:
        case str():
            return value if len(value) <= _MAX_CHARS else value[:_MAX_CHARS] + _MORE
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return cut(str(value))


def quoted(value: Any) -> str:
    """Return the beginning of a text, quoted like Python's repr; for other values like `cut`."""
    return repr(cut(value)) if isinstance(value, str) else cut(value)


def quoted_names(names: Iterable[str]) -> str:
    """Return the beginning of a comma-separated list of quoted names."""
    # Each name takes more than three characters, so more are never shown.
    return cut(", ".join(map(quoted, islice(names, _MAX_CHARS))))


def json_beginning(value: Any) -> str:
    """Return the first 100 characters of a value's JSON without encoding the rest."""
    return json.dumps(_beginning(value, [_MAX_CHARS]))[:_MAX_CHARS]


def _beginning(value: Any, room: list[int]) -> Any:
    """A copy of a value truncated to the remaining number of characters of its JSON."""
    room[0] -= 1
    match value:
        case str():
            text = value[: max(0, room[0])]
            room[0] -= len(text)
            return text
        case list():
            return [_beginning(item, room) for item in takewhile(lambda _: room[0] > 0, value)]
        case dict():
            items = takewhile(lambda _: room[0] > 0, value.items())
            return {_beginning(key, room): _beginning(item, room) for key, item in items}
        case _:
            return value
