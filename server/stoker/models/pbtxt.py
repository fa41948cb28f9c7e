"""Reads protobuf's text format without knowing the messages.

https://protobuf.dev/reference/protobuf/textformat-spec/ without extensions and `Any`. Every field has a list of
values here, because only its reader knows whether it is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

MOST_CHARACTERS: Final = 1 << 20
"""The longest text, which takes seconds to parse."""
_MOST_NESTED: Final = 64
_MOST_NUMBER: Final = 1 << 64
_MOST_DIGITS: Final = 1000
"""The most digits of a number with a point; whole numbers have fewer."""
_TOKEN: Final = re.compile(
    r"""
    (?P<blank>[ \t\r\n\f\v]+|\#[^\n]*)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>(?:0[xX][0-9A-Fa-f]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)(?![\w.]))
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}<>\[\]:,;-])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv?'\"\\])|([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)"
)
_SINGLE: Final = dict(zip("abfnrtv?'\"\\", "\a\b\f\n\r\t\v?'\"\\", strict=True))
_CLOSING: Final = {"{": "}", "<": ">"}
_WORDS_OF_NUMBERS: Final = ("inf", "infinity", "nan")


class PbtxtError(ValueError):
    """A text is not in the format; the message begins with the line and the column."""


class Identifier(str):
    """A value without quotes: the name of an enum's value, `true`, `false`."""

    __slots__ = ()


Value: TypeAlias = "int | float | str | Message"
"""A number, a text, an `Identifier`, or a message."""

Message: TypeAlias = dict[str, list[Value]]
"""The values of each field by its name, in the order of the text."""


def parse(text: str) -> Message:
    """Read a message."""
    tokens = _Tokens(text)
    message = _message(tokens, "", 0)
    if tokens.peek().kind != "end":
        raise tokens.error("expected the name of a field", tokens.peek())
    return message


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Tokens:
    """The remaining tokens of a text. The last one is of the kind `end`, or of the kind `unknown` before it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens_of(text))
        self._tokens.reverse()

    def peek(self) -> _Token:
        """Return the next token."""
        return self._tokens[-1]

    def advance(self) -> _Token:
        """Consume and return the next token."""
        return self._tokens.pop() if len(self._tokens) > 1 else self._tokens[0]

    def skip(self, *signs: str) -> bool:
        """Consume the next token if it is one of these signs."""
        token = self.peek()
        found = token.kind == "sign" and token.text in signs
        if found:
            self.advance()
        return found

    def error(self, problem: str, token: _Token) -> PbtxtError:
        line = self._text.count("\n", 0, token.start) + 1
        column = token.start - self._text.rfind("\n", 0, token.start)
        got = "the text ends" if token.kind == "end" else f"got {token.text[:40]}"
        return PbtxtError(f"line {line}, column {column}: {problem}, {got}")


def _tokens_of(text: str) -> Iterator[_Token]:
    position = 0
    while found := _TOKEN.match(text, position):
        if found.lastgroup != "blank":
            yield _Token(str(found.lastgroup), found[0], position)
        position = found.end()
    rest = text[position : position + 1]
    yield _Token("unknown" if rest else "end", rest, position)


def _message(tokens: _Tokens, closing: str, depth: int) -> Message:
    """Read the fields up to the sign that closes the message, or up to the end for the outermost message."""
    message: Message = {}
    while (token := tokens.peek()).kind == "word":
        if depth > _MOST_NESTED:
            raise tokens.error(f"messages are nested more than {_MOST_NESTED} deep", token)
        tokens.advance()
        values = message.setdefault(token.text, [])
        # Messages need no colon.
        if not tokens.skip(":") and tokens.peek().text not in ("{", "<", "["):
            raise tokens.error(f"expected ':' or '{{' behind {token.text}", tokens.peek())
        values += _values(tokens, depth)
        tokens.skip(",", ";")
    if closing and not (token.kind == "sign" and token.text == closing):
        raise tokens.error(f"expected the name of a field or '{closing}'", token)
    return message


def _values(tokens: _Tokens, depth: int) -> list[Value]:
    """Read the value of a field, or its list of values."""
    if not tokens.skip("["):
        return [_value(tokens, depth)]
    values: list[Value] = []
    if tokens.skip("]"):
        return values
    while True:
        values.append(_value(tokens, depth))
        if tokens.skip("]"):
            return values
        if not tokens.skip(","):
            raise tokens.error("expected ',' or ']'", tokens.peek())


def _value(tokens: _Tokens, depth: int) -> Value:
    token = tokens.advance()
    if token.kind == "sign" and token.text in _CLOSING:
        closing = _CLOSING[token.text]
        message = _message(tokens, closing, depth + 1)
        tokens.advance()
        return message
    if token.kind == "text":
        return _text(tokens, token)
    if token.kind == "number":
        return _number(tokens, token)
    if token.kind == "word":
        return Identifier(token.text)
    if token.kind == "sign" and token.text == "-":
        token = tokens.advance()
        if token.kind == "number":
            return -_number(tokens, token)
        if token.kind == "word" and token.text.lower() in _WORDS_OF_NUMBERS:
            return -float(token.text)
    raise tokens.error("expected a value", token)


def _number(tokens: _Tokens, token: _Token) -> int | float:
    text = token.text
    if len(text) > _MOST_DIGITS:
        raise tokens.error(f"expected a number of at most {_MOST_DIGITS} digits", token)
    is_hexadecimal = text[:2].lower() == "0x"
    if not is_hexadecimal and not text.isdigit():
        return float(text.rstrip("fF"))
    is_octal = not is_hexadecimal and text[0] == "0" and text != "0"
    if is_octal and text.strip("01234567"):
        raise tokens.error("expected octal digits behind 0", token)
    value = int(text, 16 if is_hexadecimal else 8 if is_octal else 10)
    if value >= _MOST_NUMBER:
        raise tokens.error("expected a number of at most 64 bits", token)
    return value


def _text(tokens: _Tokens, token: _Token) -> str:
    """Read a text; adjacent texts are one."""
    pieces = [_unescaped(tokens, token)]
    while tokens.peek().kind == "text":
        pieces.append(_unescaped(tokens, tokens.advance()))
    try:
        return b"".join(pieces).decode("utf-8")
    except UnicodeDecodeError:
        raise tokens.error("expected a text in UTF-8", token) from None


def _unescaped(tokens: _Tokens, token: _Token) -> bytes:
    def character(found: re.Match[str]) -> str:
        single, octal, hexadecimal, short, long = found.groups()
        if single is not None:
            return _SINGLE[single]
        if short is not None or (long is not None and int(long, 16) < 0x110000):
            # Other escapes are bytes, so these become bytes too.
            return chr(int(short or long, 16)).encode("utf-8", "surrogatepass").decode("latin-1")
        code = int(octal, 8) if octal else int(hexadecimal, 16) if hexadecimal else 256
        if code > 255:
            raise tokens.error(f"{found[0]} is no escape", token)
        return chr(code)

    pieces, end, body = [], 0, token.text[1:-1]
    for found in _ESCAPE.finditer(body):
        pieces += [body[end : found.start()].encode(), character(found).encode("latin-1")]
        end = found.end()
    return b"".join([*pieces, body[end:].encode()])
