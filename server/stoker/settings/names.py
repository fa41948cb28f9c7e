"""Names of models and services, and which of a model's versions are served.

Names are folder names, URL segments and metric labels. Registered models have names of a few ASCII characters. A
service may also be called like a folder of another server's repository: anything that is no path and needs no quotes
within quotes, such as those of a label.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePath
from typing import Final

from stoker.errors import InvalidSettings

NAME_RULE = "1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit"

SERVICE_RULE = (
    "1 to 100 letters and digits of any script, spaces or one of ._-+@=~#&!(), the first a letter or digit, the last "
    "no space"
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_FURTHER = frozenset(" ._-+@=~#&!()")
_CONVENTIONAL_STEMS = {"score", "model", "main", "saved_model"}
"""Conventional file names; the folder's name says more."""
_MAX_CHARACTERS = 100
_MAX_BYTES = 200
"""A file name has 255, and those of a service's files have endings."""
_LIKENESS = 0.6
_REFERENCE_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


SCHEMES: Final = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "sftp", "ssh", "http", "https", "file")
"""The schemes of addresses from which models and data are fetched; see `stoker.models.remote_stores`."""
_ADDRESS: Final = re.compile(rf"({'|'.join(SCHEMES)}):/{{1,3}}(?=[^/])", re.IGNORECASE)


def read_address(text: str | PurePath) -> str | None:
    """Return the address that a text or path is; None if it is a path of this machine.

    A path has lost one of the slashes: `Path("s3://bucket/model")` is `s3:/bucket/model`.
    """
    found = _ADDRESS.match(str(text))
    if found is None:
        return None
    scheme = found[1].lower()
    return f"{scheme}://{'/' * (scheme == 'file')}{str(text)[found.end() :]}"


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
    """Return `name` if it is a valid name of a service."""
    if not is_service_name(name):
        raise InvalidSettings(f"{name!r} cannot be a {kind} name: it has to be {SERVICE_RULE}")
    return name


def checked_pattern(pattern: str) -> str:
    """Return `pattern` if it is a valid name of a model, or becomes one once each `*` is replaced by letters."""
    checked_service(pattern.replace("*", "x"))
    return pattern


@lru_cache(maxsize=4096)
def matches_any(name: str, patterns: frozenset[str]) -> bool:
    """Whether `name` is one of `patterns`, in which `*` stands for any letters, or none."""
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def checked_name(name: str, kind: str = "model") -> str:
    """Return `name` if it is a valid name of a model or service."""
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
    """
    name, colon, version = reference.partition(":")
    check(name)
    if not colon:
        return name, None
    if not _REFERENCE_VERSION.fullmatch(version):
        raise InvalidSettings(f"{reference!r}: expected NAME or NAME:VERSION, the version a number from 1 up")
    return name, int(version)


def did_you_mean(name: object, known: Collection[str], otherwise: str | None = None) -> str:
    """Return `did you mean NEAR?` for the known name nearest to another one, or `otherwise` if none is near.

    By default, `otherwise` lists all names. Dotted names are compared whole and by their last parts: some are only
    written into the wrong object.
    """

    def likeness(candidate: str) -> float:
        return max(
            SequenceMatcher(None, _letters(candidate), _letters(given)).ratio()
            for candidate, given in (
                (candidate, str(name)),
                (candidate.rpartition(".")[2], str(name).rpartition(".")[2]),
            )
        )

    near = max(known, key=likeness, default="")
    if near and likeness(near) >= _LIKENESS:
        return f"did you mean {near}?"
    return f"there are {', '.join(known)}" if otherwise is None else otherwise


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
