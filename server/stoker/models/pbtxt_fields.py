"""The fields of a message in protobuf's text format, by the types that they should have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from stoker.errors import InvalidSettings, OperatorError
from stoker.models.pbtxt import MOST_CHARACTERS, Identifier, Message, PbtxtError, Value, parse
from stoker.settings.files import settings_text
from stoker.settings.names import did_you_mean

_T = TypeVar("_T")
_MOST_SHOWN: Final = 800
_SWITCHES: Final = {"true": 1, "True": 1, "t": 1, "false": 0, "False": 0, "f": 0}


class InvalidField(ValueError):
    """A field is unknown or has a value that it cannot have; the message says where."""

    def __init__(self, message: str) -> None:
        # The message may quote a text of any length.
        super().__init__(message if len(message) <= _MOST_SHOWN else message[:_MOST_SHOWN] + "…")


def read_fields(file: Path, source: str, meaning: Callable[[Fields], _T], error: type[OperatorError]) -> _T:
    """Return the `meaning` of the fields of a file in protobuf's text format.

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
        place: The prefix of the names of its fields: `input[0].`, empty for the outermost message.
    """

    def __init__(self, message: Message, place: str) -> None:
        self.place = place
        self._message = message

    def has(self, field: str) -> bool:
        """Whether a field has a value; an empty list is none."""
        return bool(self._message.get(field))

    def check_known(self, *known: str) -> None:
        """Raise InvalidField for a field that is not known."""
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
        # A plain text: messages to other processes have no Identifiers.
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
        """The whole numbers of a repeated field; -1 is allowed."""
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
            switch = _SWITCHES.get(value, value) if isinstance(value, Identifier) else value
            if not isinstance(switch, int | float):
                raise InvalidField(
                    f"{self.place}{field} must be numbers or true and false, not {_shown(value)}"
                )
            numbers.append(float(switch))
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

    def _one(self, field: str, kind: type[_T], expected: str) -> _T | None:
        value = self._only(field)
        if value is None:
            return None
        if isinstance(value, kind) and (kind is not str or not isinstance(value, Identifier)):
            return value
        raise InvalidField(f"{self.place}{field} must be {expected}, not {_shown(value)}")

    def _only(self, field: str) -> Value | None:
        values = self._message.get(field, [])
        if len(values) > 1:
            raise InvalidField(f"{self.place}{field} stands more than once")
        return values[0] if values else None


def _shown(value: Value) -> str:
    return "a message" if isinstance(value, dict) else str(value)
