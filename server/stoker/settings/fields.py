"""What a setting is: a field of a frozen class that says how its value is read and what its help text is."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.errors import InvalidSettings

__all__ = ["check_keys", "converted", "setting", "settings_of"]


def setting(default: Any, convert: Callable[[Any], Any], text: str, metavar: str = "N") -> Any:
    """Return a field that can be set.

    Args:
        default: Its value where nothing is said.
        convert: Returns the value of what an argument, a variable or a file gives; raises ValueError.
        text: What `--help` says of it.
        metavar: What stands for the value there.
    """
    return dataclasses.field(default=default, metadata={"convert": convert, "help": text, "metavar": metavar})


def settings_of(kind: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a class that can be set, by name."""
    return {f.name: f for f in dataclasses.fields(kind) if f.metadata}


def converted(kind: type, values: Mapping[str, Any], source: str, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values as their settings have them.

    Args:
        kind: The class whose settings they are.
        values: What was given, by name.
        source: Where it is from, for messages.
        also: Further names that are known where the values come from, for messages.

    Raises:
        InvalidSettings: One is unknown or has a bad value.
    """
    settable = settings_of(kind)
    result = {}
    for name, value in values.items():
        if name not in settable:
            known = (*settable, *also)
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are: {', '.join(known)}"
            raise InvalidSettings(f"{source}: there is no setting {name!r}{hint}")
        try:
            result[name] = settable[name].metadata["convert"](value)
        except ValueError as error:
            raise InvalidSettings(f"{source}: {name} {error}, got {value!r}") from None
    return result


def check_keys(value: Mapping[Any, Any], known: Sequence[str], where: str = "") -> None:
    """Raise ValueError where a setting that is a mapping has another key; the message goes on behind its name.

    Args:
        value: The mapping.
        known: The keys that it may have.
        where: Which mapping within the setting is meant, as the message has it.
    """
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise ValueError(f"has {where}no {key!r}; {hint}")
