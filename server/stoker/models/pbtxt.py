"""Protobuf's text format, as far as it can be read without knowing the messages.

https://protobuf.dev/reference/protobuf/textformat-spec/ without extensions and `Any`. What a field means is for the
reader to say: repeated fields and maps are lists here, and so is every other field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from stoker.errors import InvalidSettings, OperatorError
from stoker.settings.files import settings_text
from stoker.settings.names import did_you_mean

MOST_CHARACTERS: Final = 1 << 20
"""How long a text may be, for it takes seconds then to be read."""
_MOST_NESTED: Final = 64
_MOST_NUMBER: Final = 1 << 64
_MOST_DIGITS: Final = 1000
"""Of a number with a point; whole ones have fewer."""
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
"""A number, a text, a `Identifier`, or a message."""

Message: TypeAlias = dict[str, list[Value]]
"""By the name of each field that is there all its values, in the order of the text."""


def parse(text: str) -> Message:
    """Read a message."""
    tokens = _Tokens(text)
    message = _message(tokens, "", 0)
    tokens.expect("the name of a field", at_end=True)
    return message


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


@dataclass(slots=True)
class _Tokens:
    """The remaining tokens of a text."""

    text: str
    position: int = 0

    def peek(self) -> _Token:
        """The next token; of the kind `end` where there is none."""
        while self.position < len(self.text):
            found = _TOKEN.match(self.text, self.position)
            if found is None:
                return _Token("unknown", self.text[self.position], self.position)
            if found.lastgroup != "blank":
                return _Token(str(found.lastgroup), found[0], self.position)
            self.position = found.end()
        return _Token("end", "", self.position)

    def advance(self) -> _Token:
        """Consume and return the next token."""
        token = self.peek()
        self.position += len(token.text)
        return token

    def skip(self, *signs: str) -> bool:
        """Consume the next token if it is one of these signs."""
        token = self.peek()
        if token.kind == "sign" and token.text in signs:
            self.advance()
            return True
        return False

    def expect(self, what: str, sign: str = "", *, at_end: bool = False) -> None:
        """Go past a sign, or be at the end; raise PbtxtError that `what` was expected otherwise."""
        token = self.peek()
        if (token.kind == "end") if at_end else (token.kind == "sign" and token.text == sign):
            self.advance()
            return
        raise self.error(f"expected {what}", token)

    def error(self, problem: str, token: _Token) -> PbtxtError:
        line = self.text.count("\n", 0, token.start) + 1
        column = token.start - self.text.rfind("\n", 0, token.start)
        got = "the text ends" if token.kind == "end" else f"got {token.text[:40]}"
        return PbtxtError(f"line {line}, column {column}: {problem}, {got}")


def _message(tokens: _Tokens, closing: str, depth: int) -> Message:
    """The fields up to the sign that closes the message, which is left; up to the end for the outermost."""
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
        if not tokens.skip(","):
            tokens.expect("',' or ']'", "]")
            return values


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
    value = _number_of(tokens, token)
    if isinstance(value, int) and value >= _MOST_NUMBER:
        raise tokens.error("expected a number of at most 64 bits", token)
    return value


def _number_of(tokens: _Tokens, token: _Token) -> int | float:
    text = token.text
    if len(text) > _MOST_DIGITS:
        raise tokens.error(f"expected a number of at most {_MOST_DIGITS} digits", token)
    if text[:2].lower() == "0x":
        return int(text, 16)
    if text.isdigit():
        if text[0] != "0" or text == "0":
            return int(text)
        if not text.strip("01234567"):
            return int(text, 8)
        raise tokens.error("expected octal digits behind 0", token)
    return float(text.rstrip("fF"))


def _text(tokens: _Tokens, token: _Token) -> str:
    """A text; of several that follow each other, all as one."""
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
            # Those of the other escapes are bytes, and so are these in the end.
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


# The fields of a message in protobuf's text format, by the types that they should have.


_T = TypeVar("_T")
_MOST_SHOWN: Final = 800
_SWITCHES: Final = {"true": 1, "True": 1, "t": 1, "false": 0, "False": 0, "f": 0}


class InvalidField(ValueError):
    """A field is unknown or has a value that it cannot have; the message says where."""

    def __init__(self, message: str) -> None:
        # It may quote a text of any length.
        super().__init__(message if len(message) <= _MOST_SHOWN else message[:_MOST_SHOWN] + "…")


def read_fields(file: Path, source: str, meaning: Callable[[Fields], _T], error: type[OperatorError]) -> _T:
    """Return what a file in protobuf's text format means.

    Raises:
        OperatorError: The file cannot be read, or a field is wrong; of the type `error`, beginning with `source`.
    """
    try:
        return meaning(Fields(parse(settings_text(file, MOST_CHARACTERS)), ""))
    except PbtxtError as problem:
        raise error(f"{source}, {problem}") from None
    except InvalidField as problem:
        raise error(f"{source}: {problem}") from None
    except InvalidSettings as problem:
        raise error(str(problem)) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{source} cannot be read: {problem}") from problem


class Fields:
    """One message.

    Attributes:
        place: Where it stands, to go before the names of its fields: `input[0].`, empty for the outermost.
    """

    def __init__(self, message: Message, place: str) -> None:
        self.place = place
        self._message = message

    def has(self, field: str) -> bool:
        """Whether a field is there; an empty list is no value."""
        return bool(self._message.get(field))

    def check_known(self, *known: str) -> None:
        """Raise WrongField if another field is there."""
        for field in self._message:
            if field not in known:
                hint = did_you_mean(field, known, "")
                raise InvalidField(f"there is no field {self.place}{field}{hint and f'; {hint}'}")

    def text(self, field: str) -> str | None:
        """A text, or None."""
        return self._one(field, str, "a text in quotes")

    def identifier(self, field: str) -> str | None:
        """The name of an enum's value, or None."""
        value = self._one(field, Identifier, "a name without quotes")
        # A plain text: messages to other processes hold no other.
        return None if value is None else str(value)

    def flag(self, field: str) -> bool:
        """Whether a flag is set."""
        value = self._only(field)
        if value is None or value in (0, 1) or value in ("true", "True", "t", "false", "False", "f"):
            return value in (1, "true", "True", "t")
        raise InvalidField(f"{self.place}{field} must be true or false, not {_shown(value)}")

    def number(self, field: str) -> int | None:
        """A whole number from 0 up, or None."""
        value = self._one(field, int, "a whole number")
        if value is not None and value < 0:
            raise InvalidField(f"{self.place}{field} must be a whole number from 0 up, not {value}")
        return value

    def sizes(self, field: str) -> tuple[int, ...]:
        """The whole numbers of a repeated field, -1 among them."""
        values = self._message.get(field, [])
        numbers = tuple(value for value in values if isinstance(value, int) and value >= -1)
        if len(numbers) < len(values):
            raise InvalidField(
                f"{self.place}{field} must be whole numbers, not {', '.join(map(_shown, values))}"
            )
        return numbers

    def switches(self, field: str) -> tuple[float, ...]:
        """The values of a repeated field of numbers or of true and false, as numbers."""
        numbers = []
        for value in self._message.get(field, []):
            said = _SWITCHES.get(value, value) if isinstance(value, Identifier) else value
            if not isinstance(said, int | float):
                raise InvalidField(
                    f"{self.place}{field} must be numbers or true and false, not {_shown(value)}"
                )
            numbers.append(float(said))
        return tuple(numbers)

    def message(self, field: str) -> Fields | None:
        """A message, or None."""
        value = self._one(field, dict, "a message in braces")
        return None if value is None else Fields(value, f"{self.place}{field}.")

    def messages(self, field: str) -> list[Fields]:
        """The messages of a repeated field."""
        values = self._message.get(field, [])
        messages = [value for value in values if isinstance(value, dict)]
        if len(messages) < len(values):
            raise InvalidField(f"{self.place}{field} must be messages in braces")
        return [Fields(value, f"{self.place}{field}[{index}].") for index, value in enumerate(messages)]

    def _one(self, field: str, kind: type[_T], wanted: str) -> _T | None:
        value = self._only(field)
        if value is None:
            return None
        if isinstance(value, kind) and (kind is not str or not isinstance(value, Identifier)):
            return value
        raise InvalidField(f"{self.place}{field} must be {wanted}, not {_shown(value)}")

    def _only(self, field: str) -> Value | None:
        values = self._message.get(field, [])
        if len(values) > 1:
            raise InvalidField(f"{self.place}{field} stands more than once")
        return values[0] if values else None


def _shown(value: Value) -> str:
    return "a message" if isinstance(value, dict) else str(value)
