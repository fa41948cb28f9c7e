"""The fields of a message in protobuf's text format, by the types that they should have."""

from __future__ import annotations

import difflib
from typing import Final, TypeVar

from stoker.models.pbtxt import Message, Value, Word

__all__ = ["Fields", "WrongField"]

_T = TypeVar("_T")
_MOST_CHARACTERS: Final = 800
_SWITCHES: Final = {"true": 1, "True": 1, "t": 1, "false": 0, "False": 0, "f": 0}


class WrongField(ValueError):
    """A field is unknown or has a value that it cannot have; the message says where."""

    def __init__(self, message: str) -> None:
        # It may quote a text of any length.
        super().__init__(message if len(message) <= _MOST_CHARACTERS else message[:_MOST_CHARACTERS] + "…")


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
                near = difflib.get_close_matches(field, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise WrongField(f"there is no field {self.place}{field}{hint}")

    def text(self, field: str) -> str | None:
        """A text, or None."""
        return self._one(field, str, "a text in quotes")

    def word(self, field: str) -> str | None:
        """The name of an enum's value, or None."""
        return self._one(field, Word, "a name without quotes")

    def flag(self, field: str) -> bool:
        """Whether a switch is there and on."""
        value = self._only(field)
        if value is None or value in (0, 1) or value in ("true", "True", "t", "false", "False", "f"):
            return value in (1, "true", "True", "t")
        raise WrongField(f"{self.place}{field} must be true or false, not {_shown(value)}")

    def number(self, field: str) -> int | None:
        """A whole number from 0 up, or None."""
        value = self._one(field, int, "a whole number")
        if value is not None and value < 0:
            raise WrongField(f"{self.place}{field} must be a whole number from 0 up, not {value}")
        return value

    def sizes(self, field: str) -> tuple[int, ...]:
        """The whole numbers of a repeated field, -1 among them."""
        values = self._message.get(field, [])
        numbers = tuple(value for value in values if isinstance(value, int) and value >= -1)
        if len(numbers) < len(values):
            raise WrongField(
                f"{self.place}{field} must be whole numbers, not {', '.join(map(_shown, values))}"
            )
        return numbers

    def switches(self, field: str) -> tuple[float, ...]:
        """The values of a repeated field of numbers or of true and false, as numbers."""
        numbers = []
        for value in self._message.get(field, []):
            said = _SWITCHES.get(value, value) if isinstance(value, Word) else value
            if not isinstance(said, int | float):
                raise WrongField(
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
            raise WrongField(f"{self.place}{field} must be messages in braces")
        return [Fields(value, f"{self.place}{field}[{index}].") for index, value in enumerate(messages)]

    def _one(self, field: str, kind: type[_T], wanted: str) -> _T | None:
        value = self._only(field)
        if value is None:
            return None
        if isinstance(value, kind) and (kind is not str or not isinstance(value, Word)):
            return value
        raise WrongField(f"{self.place}{field} must be {wanted}, not {_shown(value)}")

    def _only(self, field: str) -> Value | None:
        values = self._message.get(field, [])
        if len(values) > 1:
            raise WrongField(f"{self.place}{field} stands more than once")
        return values[0] if values else None


def _shown(value: Value) -> str:
    return "a message" if isinstance(value, dict) else str(value)
