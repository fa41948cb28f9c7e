"""A caller's own texts in the messages that it gets: at most 100 characters of them.

What a caller sends may have 100 MB, and a message is copied several times on its way into the answer and the log.
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
    """Return the beginning of a text; of a list or an object only that it is one."""
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
    """Return the beginning of a text as Python quotes it; of other values what `cut` gives."""
    return repr(cut(value)) if isinstance(value, str) else cut(value)


def quoted_names(names: Iterable[str]) -> str:
    """Return the beginnings of names, quoted, with commas between them, until it is enough."""
    # Each takes more than three characters, so there is more than is shown.
    return cut(", ".join(map(quoted, islice(names, _MAX_CHARS))))


def json_beginning(value: Any) -> str:
    """Return the first 100 characters of a value's JSON, without writing the rest."""
    return json.dumps(_beginning(value, [_MAX_CHARS]))[:_MAX_CHARS]


def _beginning(value: Any, room: list[int]) -> Any:
    """A value without what stands behind so many characters of its JSON as there is room for."""
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
