"""Why a body is not JSON that a script can be expected to read."""

from __future__ import annotations

import json
import re
from typing import Final

__all__ = ["MAX_DEPTH", "json_fault"]

MAX_DEPTH: Final = 100
"""Arrays and objects inside each other that a body may have."""

# str(list(row)) has these since numpy 2; torch and older numpy have the others.
_REPR: Final = re.compile(
    r"(?:(?:np|numpy)\.)?(?:True_|False_|(?:array|tensor|u?int\d+|float\d+|str_|bytes_|bool)\([^()]{0,40}\)?)",
    re.ASCII,
)

# A string that is never closed runs to the end: brackets in it do not count.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z|\\\Z)|[\[{]|[\]}]', re.DOTALL)


def json_fault(text: str) -> str | None:
    """Say where `text` stops being JSON; None if it is JSON.

    `NaN`, `Infinity` and `-Infinity` count as JSON, as Python's reader has it. Arrays nested more than
    `MAX_DEPTH` deep and integers of more digits than Python converts (4300) do not.
    """
    deep = _too_deep(text)
    if deep is not None:
        return f"nested more than {MAX_DEPTH} levels deep: {_place(text, deep)}"
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error}{_hint(text, error.pos)}"
    except ValueError:
        return "an integer has too many digits"
    return None


def _too_deep(text: str) -> int | None:
    depth = 0
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return token.start()
        elif first != '"':
            depth -= 1
    return None


def _hint(text: str, position: int) -> str:
    """What the body's maker probably did, where that can be seen from what stands there."""
    found = _REPR.match(text, position)
    if found is None:
        return ""
    return (
        f"; {found[0]} looks like Python's repr of numpy values, as str(list(row)) gives it: use str(row.tolist()), "
        "or json.dumps"
    )


def _place(text: str, position: int) -> str:
    error = json.JSONDecodeError("", text, position)
    return f"line {error.lineno} column {error.colno} (char {position})"
