"""JSON bodies before anything is made of them: what they may hold, how they are read, how a value is called.

What Python makes of a JSON text can be many times as large, so each limit here is looked up in the bytes.
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

__all__ = [
    "MAX_VALUES",
    "check_slow",
    "check_text",
    "check_values",
    "finite",
    "kind_of",
    "load",
    "nesting_depth",
    "nests_deeper",
    "numpy_hint",
    "parse_document",
    "plain_numbers",
    "rewritten",
]

MAX_VALUES: Final = 1 << 22
"""How many values a body may hold; see `check_values`."""

_MAX_DEPTH: Final = 100
_PIECE_BYTES: Final = 1 << 18
_MAX_WIDE_BYTES: Final = 48 << 20
_WIDE_LETTER: Final = re.compile(rb"[\xc4-\xf4]")
_LONG_BYTES: Final = 1 << 18
_MAX_SLOW_BYTES: Final = 16 << 20
_BOM: Final = b"\xef\xbb\xbf"


def nests_deeper(body: bytes, levels: int) -> bool:
    """Whether a JSON text that nobody has parsed yet may have more levels than this; see `nesting_depth`."""
    # It has no more levels than brackets that open, and mostly few of those.
    return body.count(b"[") + body.count(b"{") > levels and nesting_depth(body) > levels


def nesting_depth(body: bytes) -> int:
    """How deeply brackets and braces are nested in a JSON text, for bodies that nobody has parsed yet.

    Brackets inside strings count too: the result is an upper bound, which is enough to refuse a body.
    """
    codes = np.frombuffer(body, np.uint8)
    depth = deepest = 0
    # Piece by piece, for what is made of a whole body here would be many times as large.
    for start in range(0, len(codes), _PIECE_BYTES):
        # "[" and "{" differ from "]" and "}" by 2; both pairs map to one code with bit 5 cleared.
        folded = codes[start : start + _PIECE_BYTES] & 0xDF
        opening = folded == 0x5B
        # Of what is between brackets, which is nearly all, nothing is summed up.
        places = np.flatnonzero(opening | (folded == 0x5D))
        if len(places):
            levels = np.cumsum(np.where(opening[places], 1, -1))
            deepest = max(deepest, depth + int(levels.max()))
            depth += int(levels[-1])
    return deepest


def check_values(body: bytes) -> None:
    """Refuse JSON of so many values that what is made of them would take many times the body's memory.

    A number or a list counts once, a string three times, an object more often: once for some 50 bytes of memory.

    Raises:
        BodyTooLarge: There are more than four million; or a long text has a letter for which Python takes two or four
            bytes for each of its letters.
    """
    if len(body) <= MAX_VALUES:
        return
    if len(body) > _MAX_WIDE_BYTES and not body.isascii() and _WIDE_LETTER.search(body):
        raise BodyTooLarge(
            f"JSON with letters beyond U+00FF is read up to {_MAX_WIDE_BYTES >> 20} MiB; send it in parts, or as "
            "binary data."
        )
    # What stands in strings counts too.
    count = sum(map(body.count, (b",", b"[", b":", b'"'))) + 3 * body.count(b"{")
    if count > MAX_VALUES:
        raise BodyTooLarge(
            f"The request body holds more than {MAX_VALUES} JSON values; send it in parts, or as binary data."
        )


def check_slow(body: bytes) -> None:
    """Refuse what only Python's own parser of JSON reads, if it is long: nobody else is served meanwhile.

    Raises:
        BodyTooLarge: It has more than 16 MiB.
    """
    if len(body) > _MAX_SLOW_BYTES:
        raise BodyTooLarge(
            f"JSON with the words NaN or Infinity, or with something behind it, is read up to "
            f"{_MAX_SLOW_BYTES >> 20} MiB; send it in parts, or as binary data."
        )


def parse_document(body: bytes) -> Any:
    """Parse a JSON body that is nested at most 100 levels deep.

    Where it is no JSON for scalars of numpy alone, such as `np.float64(0.5)`, their numbers are read.

    Raises:
        MalformedBody: It is empty, not UTF-8, not JSON, nested too deeply, or holds NaN or infinities.
        BodyTooLarge: See `check_values`.
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
    """`orjson.loads`; of a long text without collections of garbage meanwhile.

    What it makes has no circles, and to look for them again and again takes twice as long as to make it.
    """
    if len(text) < _LONG_BYTES or not gc.isenabled():
        return orjson.loads(text)
    gc.disable()
    try:
        return orjson.loads(text)
    finally:
        gc.enable()


def finite(number: str) -> float:
    """Read a number of a JSON text that may hold the token Infinity: digits must not mean it.

    Raises:
        ValueError: It is too large for a double.
    """
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
    """Say in words what a JSON value is."""
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

# A whole value: nothing stands beside it that would be one with its number.
_NUMBER: Final = (
    r"(?<![^\s\[,:])np\.(?:float|u?int)(?:8|16|32|64)"
    r"\((-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\)(?![^\s\],}])"
)
_BEGINS: Final = re.compile(_NUMBER, re.ASCII)
# Strings stay as they are; one that is never closed runs to the end.
_EACH: Final = re.compile(rf'("(?:[^"\\]|\\.)*+(?:"|\Z|\\\Z))|{_NUMBER}', re.ASCII | re.DOTALL)


def plain_numbers(text: str, position: int) -> str | None:
    """Return the body with the numbers in the place of numpy's scalars, such as `np.float64(0.5)`.

    `str(list(row))` of numpy 2 gives them; each can only mean its number. The result may still not be JSON.

    Args:
        text: The body.
        position: Where it stops being JSON, in characters.

    Returns:
        None, if no such scalar stands there.
    """
    return _EACH.sub(r"\1\2", text) if _BEGINS.match(text, position) else None


def numpy_hint(text: str, position: int) -> str:
    """Return what the body's maker probably did, where that can be seen from what stands there; else nothing.

    Args:
        text: The body.
        position: Where it stops being JSON, in characters.
    """
    found = _REPR.match(text, position)
    if found is None:
        return ""
    return (
        f"; {found[0]} looks like Python's repr of numpy values, as str(list(row)) gives it: use str(row.tolist()), "
        "or json.dumps"
    )


def rewritten(
    text: bytes,
    value: Any,
    default: Callable[[Any], Any],
    non_finite: NonFinite,
    separators: tuple[str, str] | None = None,
) -> bytes:
    """Return the JSON of an answer in which orjson may have written null for a number.

    Args:
        text: What orjson made of it.
        value: What it was made of.
        default: What arrays become.
        non_finite: What becomes of numbers that are not finite.
        separators: Those of `json.dumps`.

    Raises:
        NonFiniteOutput: There is one, and it is to be refused.
    """
    if non_finite == "null":
        return text
    try:
        # A string may say null as well; whether a number is not finite is known once all were written.
        return json.dumps(
            value, default=default, allow_nan=non_finite == WORDS, separators=separators
        ).encode()
    except ValueError:
        raise NonFiniteOutput from None
