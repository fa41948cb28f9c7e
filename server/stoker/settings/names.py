"""Names of models and services: they are used as folder names, URL segments and metric labels.

What Stoker registers has a name of a few ASCII characters. A service may be called as a folder of another server's
repository is: what needs no quotes within quotes, such as those of a label, and is no path.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import PurePath

from stoker.errors import InvalidSettings

__all__ = [
    "NAME_RULE",
    "SERVICE_RULE",
    "checked_name",
    "checked_service",
    "is_name",
    "is_service_name",
    "name_from_file",
    "name_from_path",
    "parse_reference",
]

NAME_RULE = "1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit"

SERVICE_RULE = (
    "1 to 100 letters and digits of any script, spaces or one of ._-+@=~#&!(), the first a letter or digit, the last "
    "no space"
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_FURTHER = frozenset(" ._-+@=~#&!()")
_CONVENTIONAL_STEMS = {"score", "model", "main", "saved_model"}
"""Of files that are always called so: their folder's name says more."""
_MAX_CHARACTERS = 100
_MAX_BYTES = 200
"""A file name has 255, and those of a service's files have endings."""
_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def is_name(name: str) -> bool:
    """Whether `name` is a valid name of a model or service."""
    return _NAME.fullmatch(name) is not None


def is_service_name(name: str) -> bool:
    """Whether `name` is a valid name of a service, which may be that of a folder in another server's repository."""
    return (
        0 < len(name) <= _MAX_CHARACTERS
        and name[0].isalnum()
        and name[-1] != " "
        and all(
            letter.isalnum() or letter in _FURTHER or unicodedata.category(letter)[0] == "M"
            for letter in name
        )
        and len(name.encode()) <= _MAX_BYTES
    )


def checked_service(name: str, kind: str = "model") -> str:
    """Return `name` if it is a valid name of a service.

    Raises:
        InvalidSettings: It is not.
    """
    if not is_service_name(name):
        raise InvalidSettings(f"{name!r} cannot be a {kind} name: it has to be {SERVICE_RULE}")
    return name


def checked_name(name: str, kind: str = "model") -> str:
    """Return `name` if it is a valid name of a model or service.

    Raises:
        InvalidSettings: It is not.
    """
    if not is_name(name):
        article = "an" if kind[0] in "aeiou" else "a"
        raise InvalidSettings(f"{name!r} cannot be {article} {kind} name: it has to be {NAME_RULE}")
    return name


def name_from_file(stem: str) -> str:
    """Make a valid name from that of a file or folder, preserving what is valid: `my model (1)` -> `my-model-1`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100].rstrip("-") or "model"


def name_from_path(path: PurePath, *, is_folder: bool) -> str:
    """Make the name of a model that is served from a path.

    A file is called as itself, or as its folder where all files are called so; a folder as itself, or as the one
    above it if it is a numbered version.

    Args:
        path: The path; absolute, or the folder in which it lies has no name.
        is_folder: Whether it is a folder.
    """
    if not is_folder:
        if path.stem not in _CONVENTIONAL_STEMS:
            return name_from_file(path.stem)
        path = path.parent
    return name_from_file(path.parent.name if path.name.isdecimal() and path.parent.name else path.name)


def parse_reference(reference: str, check: Callable[[str], str] = checked_name) -> tuple[str, int | None]:
    """Split `NAME[:VERSION]`; no version means the latest, and is returned as None.

    Args:
        check: Which names it may have: by default those of registered models.

    Raises:
        InvalidSettings: The name or the version is malformed.
    """
    name, colon, version = reference.partition(":")
    check(name)
    if not colon:
        return name, None
    if not _VERSION.fullmatch(version):
        raise InvalidSettings(f"{reference!r}: expected NAME or NAME:VERSION, the version a number from 1 up")
    return name, int(version)
