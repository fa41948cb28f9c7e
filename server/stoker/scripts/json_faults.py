"""Finds out why a body is not JSON that a script can be expected to read."""

from __future__ import annotations

import json
import re
from typing import Final

from stoker.wire.json_bodies import numpy_hint

_MAX_DEPTH: Final = 100
"""Levels of arrays and objects that a body may have."""


# A string that is never closed runs to the end: brackets in it do not count.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z|\\\Z)|[\[{]|[\]}]', re.DOTALL)


def json_fault(text: str) -> str | None:
    """Return the reason and the place where `text` stops being JSON; None if it is JSON.

    `NaN`, `Infinity` and `-Infinity` count as JSON, as in Python's reader. Arrays nested more than `_MAX_DEPTH` deep
    and integers of more digits than Python converts (4300) do not.
    """
    deep = _too_deep(text)
    if deep is not None:
        return f"nested more than {_MAX_DEPTH} levels deep: {_place(text, deep)}"
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error}{numpy_hint(text, error.pos)}"
    except ValueError:
        return "an integer has too many digits"
    return None


def _too_deep(text: str) -> int | None:
    depth = 0
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "[{":
            depth += 1
            if depth > _MAX_DEPTH:
                return token.start()
        elif first != '"':
            depth -= 1
    return None


def _place(text: str, position: int) -> str:
    error = json.JSONDecodeError("", text, position)
    return f"line {error.lineno} column {error.colno} (char {position})"
