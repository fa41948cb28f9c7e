"""Keys of the files that Azure's tools write: each may be written in several cases, and an unknown one has no effect.

Newer and older versions of these tools write keys that Stoker does not know, so such a key gets a line, and no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableSequence
from difflib import get_close_matches
from typing import Any

from stoker.errors import InvalidSettings

__all__ = ["flag", "folded", "known_keys", "mapping", "text", "whole"]


def folded(key: object) -> str:
    """A key without its case: `NodeCount`, `nodeCount` and `node_count` are one."""
    return str(key).replace("_", "").replace("-", "").lower()


def known_keys(content: Any, known: Iterable[str], where: str, notes: MutableSequence[str]) -> dict[str, Any]:
    """Return the known keys of a mapping, folded, with their values.

    Args:
        content: The mapping; None is an empty one.
        known: All keys that it may have, as they are usually written.
        where: File and section, for messages.
        notes: Gets a line for each unknown key, with the nearest known one.

    Raises:
        InvalidSettings: It is no mapping, or has a key twice.
    """
    names = {folded(name): name for name in known}
    found: dict[str, Any] = {}
    for key, value in mapping(content, where).items():
        name = folded(key)
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            notes.append(f"{where}: the key {key!r} is unknown and has no effect{hint}")
            continue
        if name in found:
            raise InvalidSettings(f"{where}: the key {key!r} stands there twice, in different cases")
        found[name] = value
    return found


def mapping(content: Any, where: str) -> Mapping[str, Any]:
    """Return a mapping; nothing is an empty one.

    Raises:
        InvalidSettings: It is something else.
    """
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSettings(f"{where} has to be names with values")
    return content


def flag(value: Any, where: str) -> bool:
    """Whether something is true, quoted or not.

    Raises:
        InvalidSettings: It is neither true nor false.
    """
    word = str(value).strip().lower()
    if word not in ("true", "false", "none", ""):
        raise InvalidSettings(f"{where} is {value!r}, and can be true or false")
    return word == "true"


def text(value: Any) -> str:
    """A value as text; nothing is an empty one."""
    return "" if value is None else str(value).strip()


def whole(value: Any, where: str) -> int:
    """A number from 1 up, quoted or not.

    Raises:
        InvalidSettings: It is none.
    """
    if isinstance(value, bool) or not str(value).strip().isdecimal() or int(str(value)) < 1:
        raise InvalidSettings(f"{where} is {value!r}, and has to be a number from 1 up")
    return int(str(value))
