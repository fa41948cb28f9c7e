"""Bodies of several callers as one: `{"data": [a, b]}` and `{"data": [c]}` become `{"data": [a, b, c]}`.

Merging works on the text. A body that qualifies has nothing but one key with a list, so the text of its rows runs
from the first `[` to the last `]`. No list of Python numbers is made on our side, and each number reaches the script
exactly as its caller wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["MERGED_BYTES", "merge", "row_count", "row_texture"]

MERGED_BYTES: Final = 8 << 20
"""Longest text that is merged, alone and together; what reading longer ones costs is not saved by company."""


def row_count(parser: Any, body: bytes, key: str = "data") -> int:
    """Return how many rows a body has that may be merged with others, 0 for any other body.

    Args:
        parser: A `simdjson.Parser`; its memory is reused, so it belongs to one thread.
        body: Anything.
        key: The only key that the body may have. It holds no bracket.
    """
    if len(body) > MERGED_BYTES:
        return 0
    document: Any = None
    rows: Any = None
    try:
        document = parser.parse(body)
        if len(document) != 1:
            return 0
        rows = document[key]
        # Only lists have buffers; a dict with entries has a length too.
        return len(rows) if hasattr(rows, "as_buffer") else 0
    except (ValueError, TypeError, KeyError, RuntimeError):
        return 0
    finally:
        # The parser refuses its next document while anything refers to the last one.
        document = rows = None


def merge(bodies: Sequence[bytes], key: str = "data") -> bytes:
    """Return one body with the rows of all, in their order.

    Args:
        bodies: Bodies for which `row_count` is positive.
        key: Their only key.
    """
    return b"{%b: [%b]}" % (json.dumps(key).encode(), b", ".join(map(_rows_text, bodies)))


def row_texture(body: bytes) -> tuple[bool, ...]:
    """Return which kinds of JSON values its rows have, for a body that may be merged.

    Whole numbers beside fractions, or null beside numbers, become one type in an array or a table. Rows of equal
    texture keep the types that they have alone.
    """
    text = _rows_text(body)
    if b'"' in text:
        # The letters of strings say nothing; so only what changes a whole column is looked for.
        return (True, b"null" in text, b"{" in text)
    return (
        False,
        b"." in text or b"e" in text or b"E" in text,
        b"n" in text,
        b"t" in text,
        b"f" in text,
    )


def _rows_text(body: bytes) -> bytes:
    return body[body.index(b"[") + 1 : body.rindex(b"]")]
