"""JSON of requests and answers: limits, parsing, and numbers that JSON cannot hold.

Parsed JSON can take many times the memory of its text, so all limits are checked on the bytes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import orjson

from stoker.errors import BodyTooLarge, MalformedBody, NonFiniteOutput
from stoker.settings.choices import WORDS, NonFinite

MAX_VALUES: Final = 1 << 22
"""The maximum number of values in a body; see `check_values`."""

_MAX_DEPTH: Final = 100
_PIECE_BYTES: Final = 1 << 18
_MAX_WIDE_BYTES: Final = 48 << 20
_WIDE_LETTER: Final = re.compile(rb"[\xc4-\xf4]")
_LONG_BYTES: Final = 1 << 18
_MAX_SLOW_BYTES: Final = 16 << 20
_BOM: Final = b"\xef\xbb\xbf"


def nests_deeper(body: bytes, levels: int) -> bool:
    """Return whether a JSON text that is not parsed yet may have more than `levels` levels; see `nesting_depth`."""
    # Most texts have few opening brackets, and never more levels than those.
    return body.count(b"[") + body.count(b"{") > levels and nesting_depth(body) > levels


def nesting_depth(body: bytes) -> int:
    """Return how deeply brackets and braces are nested in a JSON text that is not parsed yet.

    Brackets inside strings count too: the result is an upper bound, which is enough to refuse a body.
    """
    codes = np.frombuffer(body, np.uint8)
    depth = deepest = 0
    # In pieces, because the arrays for a whole body would be many times as large as the body.
    for start in range(0, len(codes), _PIECE_BYTES):
        # "[" and "{" differ from "]" and "}" by 2; both pairs map to one code with bit 5 cleared.
        folded = codes[start : start + _PIECE_BYTES] & 0xDF
        opening = folded == 0x5B
        # Nearly all bytes are between brackets: only brackets are summed up.
        places = np.flatnonzero(opening | (folded == 0x5D))
        if len(places):
            levels = np.cumsum(np.where(opening[places], 1, -1))
            deepest = max(deepest, depth + int(levels.max()))
            depth += int(levels[-1])
    return deepest


def check_values(body: bytes) -> None:
    """Refuse JSON with so many values that parsing it would take many times the memory of the body.

    A number or a list counts once, a string three times, an object more often: once for some 50 bytes of memory.
    """
    if len(body) <= MAX_VALUES:
        return
    if len(body) > _MAX_WIDE_BYTES and not body.isascii() and _WIDE_LETTER.search(body):
        raise BodyTooLarge(
            f"JSON with letters beyond U+00FF is read up to {_MAX_WIDE_BYTES >> 20} MiB; send it in parts, or as "
            "binary data."
        )
    # Characters inside strings count too.
    count = sum(map(body.count, (b",", b"[", b":", b'"'))) + 3 * body.count(b"{")
    if count > MAX_VALUES:
        raise BodyTooLarge(
            f"The request body holds more than {MAX_VALUES} JSON values; send it in parts, or as binary data."
        )


def check_slow(body: bytes) -> None:
    """Refuse a long text that only Python's own JSON parser reads: that parser blocks all other requests."""
    if len(body) > _MAX_SLOW_BYTES:
        raise BodyTooLarge(
            f"JSON with the words NaN or Infinity, or with something behind it, is read up to "
            f"{_MAX_SLOW_BYTES >> 20} MiB; send it in parts, or as binary data."
        )


def parse_document(body: bytes) -> Any:
    """Parse a JSON body that is nested at most 100 levels deep.

    Numbers printed by numpy, such as `np.float64(0.5)`, are read where they are all that is wrong with the JSON.
    """
    if not body:
        raise MalformedBody("The request body is empty.")
    if nests_deeper(body, _MAX_DEPTH):
        raise MalformedBody(f"The request body is nested more than {_MAX_DEPTH} levels deep.")
    check_values(body)
    try:
        return load(body.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        check_text(body)
        plain = plain_numbers(error.doc, error.pos)
        if plain is not None:
            with contextlib.suppress(orjson.JSONDecodeError):
                return load(plain.encode())
        if b"NaN" in body or b"Infinity" in body:
            raise MalformedBody(
                "The request body is not valid JSON: NaN and Infinity are not numbers."
            ) from None
        raise MalformedBody.not_json(f"{error}{numpy_hint(error.doc, error.pos)}") from None


def load(text: bytes) -> Any:
    """Parse with orjson; for a long text, without garbage collections meanwhile.

    The result has no reference cycles, and looking for them repeatedly would take twice as long as parsing.
    """
    if len(text) < _LONG_BYTES or not gc.isenabled():
        return orjson.loads(text)
    gc.disable()
    try:
        return orjson.loads(text)
    finally:
        gc.enable()


def finite(number: str) -> float:
    """Parse a number of a JSON text that may hold the token Infinity; raise ValueError for one beyond a double."""
    value = float(number)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def check_text(body: bytes) -> None:
    """Raise MalformedBody unless the body is UTF-8."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody.not_utf8(error) from None


def kind_of(value: Any) -> str:
    """Describe in words what a JSON value is."""
    match value:
        case None:
            return "null"
        case bool():
            return json.dumps(value)
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"


# str(list(row)) has these since numpy 2; torch and older numpy have the others.
_REPR: Final = re.compile(
    r"(?:(?:np|numpy)\.)?(?:True_|False_|(?:array|tensor|u?int\d+|float\d+|str_|bytes_|bool)\([^()]{0,40}\)?)",
    re.ASCII,
)

# A whole value: nothing beside it belongs to the number.
_NUMBER: Final = (
    r"(?<![^\s\[,:])np\.(?:float|u?int)(?:8|16|32|64)"
    r"\((-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\)(?![^\s\],}])"
)
_BEGINS: Final = re.compile(_NUMBER, re.ASCII)
# Strings are kept; one that is not closed runs to the end.
_EACH: Final = re.compile(rf'("(?:[^"\\]|\\.)*+(?:"|\Z|\\\Z))|{_NUMBER}', re.ASCII | re.DOTALL)


def plain_numbers(text: str, position: int) -> str | None:
    """Return the body with numbers for numpy's scalars, such as `np.float64(0.5)`; None if none is at `position`.

    `str(list(row))` of numpy 2 gives them, and each can only mean its number.
    """
    return _EACH.sub(r"\1\2", text) if _BEGINS.match(text, position) else None


def numpy_hint(text: str, position: int) -> str:
    """Return what probably went wrong where a body stops being JSON, at `position`; empty if unknown."""
    found = _REPR.match(text, position)
    if found is None:
        return ""
    return (
        f"; {found[0]} looks like Python's repr of numpy values, as str(list(row)) gives it: use str(row.tolist()), "
        "or json.dumps"
    )


def rewrite_non_finite(
    text: bytes,
    value: Any,
    default: Callable[[Any], Any],
    non_finite: NonFinite,
    separators: tuple[str, str] | None = None,
) -> bytes:
    """Rewrite the JSON of an answer in which orjson has written null, perhaps for a number that is not finite.

    `default` and `separators` are those of `json.dumps`.
    """
    if non_finite == "null":
        return text
    try:
        # A string may hold "null" too: only writing all numbers again shows whether one is not finite.
        allow_nan = non_finite == WORDS
        return json.dumps(value, default=default, allow_nan=allow_nan, separators=separators).encode()
    except ValueError:
        raise NonFiniteOutput from None


def dump(value: Any, non_finite: NonFinite = WORDS) -> bytes:
    """Return the JSON of arrays and numbers of numpy, alone or in lists and objects."""
    text = orjson.dumps(value, default=to_lists, option=orjson.OPT_SERIALIZE_NUMPY)
    return rewrite_non_finite(text, value, to_lists, non_finite) if b"null" in text else text


def to_lists(value: Any) -> Any:
    """Return nested lists of an array's elements, or a plain number; invalid UTF-8 gets replacement characters."""
    if isinstance(value, np.ndarray):
        return _texts(value.tolist()) if value.dtype == object else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(type(value).__name__)


def _texts(value: Any) -> Any:
    return [_texts(item) for item in value] if isinstance(value, list) else value.decode(errors="replace")
