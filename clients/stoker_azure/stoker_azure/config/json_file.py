"""JSON objects with settings in them: reading, and what is said about a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.files import parse_json, settings_text

__all__ = ["flatten", "read_object", "unknown"]

_LIKE: Final = 0.6


def read_object(file: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        InvalidSettings: It cannot be read, or holds something else.
    """
    try:
        content = parse_json(settings_text(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} cannot be read: {error}") from error
    except ValueError as error:
        raise InvalidSettings(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidSettings(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content


def flatten(content: Mapping[str, Any], nested: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of an object by their dotted names, without those that are null.

    Args:
        content: The object.
        nested: Names of the objects in it that group settings; others are values.
    """
    groups = set(nested)
    for name, value in content.items():
        if name in groups and isinstance(value, Mapping):
            yield from (
                (f"{name}.{inner}", content) for inner, content in value.items() if content is not None
            )
        elif value is not None:
            yield name, value


def unknown(name: str, known: Iterable[str], source: str) -> InvalidSettings:
    """The error for a name that is none, with the nearest one that is."""
    names = sorted(set(known))
    near = max(names, key=lambda candidate: _likeness(name, candidate))
    if _likeness(name, near) < _LIKE:
        return InvalidSettings(f"{source}: there is no setting {name!r}; known are: {', '.join(names)}")
    return InvalidSettings(f"{source}: there is no setting {name!r}; did you mean {near}?")


def _likeness(name: str, candidate: str) -> float:
    """How alike two names are, 0 to 1, whole or in their last parts: some are only put into the wrong object."""
    wholes = (_letters(name), _letters(candidate))
    tails = (_letters(name.rpartition(".")[2]), _letters(candidate.rpartition(".")[2]))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in (wholes, tails))


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
