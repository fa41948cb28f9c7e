"""Names of models and services, and which of a model's versions are served.

Names are folder names, URL segments and metric labels. Registered models have names of a few ASCII characters. A
service may also be called like a folder of another server's repository: anything that is no path and needs no quotes
within quotes, such as those of a label.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, Literal

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
"""The schemes of addresses from which models and data are fetched; see `stoker.models.remote_files`."""
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


# Versions and labels.


DEFAULT_LABEL: Final = "default"
"""The label of the version for requests that name none."""

State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
"""The states of a version, as in TensorFlow Serving."""

Residence = Literal["loaded", "loading", "unloading", "unloaded"]
"""Whether an available version is in memory; one that is not is loaded when it is asked for."""

ON_DEMAND: Final = "not loaded: can be loaded on demand"
"""The reason that is shown for an available version that is not in memory."""

_RESIDENCE_STATES: Final[dict[Residence, State]] = {
    "loaded": "AVAILABLE",
    "loading": "LOADING",
    "unloading": "UNLOADING",
    "unloaded": "START",
}


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of a version, as the supervisor knows it and sends it to frontends.

    Attributes:
        reason: Why it is not available, was not reloaded, or was unloaded.
        error: The error code that belongs to `reason`; empty if it is no error.
        residence: Whether it is in memory, if it is available.
    """

    slot: int
    state: State = "START"
    reason: str = ""
    error: str = ""
    residence: Residence = "loaded"

    @property
    def waits(self) -> bool:
        """Whether it waits to be asked for: it is available, but not in memory."""
        return self.state == "AVAILABLE" and self.residence == "unloaded"

    @property
    def shown_state(self) -> State:
        """The state that callers see: a version that waits to be asked for is in START."""
        return _RESIDENCE_STATES[self.residence] if self.state == "AVAILABLE" else self.state


_VERSION: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_LATEST: Final = re.compile(r"latest(?::([1-9][0-9]{0,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """The choice among existing versions.

    Attributes:
        newest: Number of the newest versions to serve; None for all.
    """

    newest: int | None = 1
    named: tuple[int, ...] = ()

    @classmethod
    def of(cls, setting: str | tuple[int, ...] | None) -> VersionPolicy:
        """The policy for a setting, as returned by `read_versions`; None is the newest version."""
        if setting is None:
            return cls()
        if isinstance(setting, tuple):
            return cls(None, setting)
        if setting == "all":
            return cls(None)
        _, _, count = setting.partition(":")
        return cls(int(count or 1))

    def choose(self, there: Collection[int]) -> list[int]:
        """Return the versions to serve, out of the existing ones, ascending."""
        if self.named:
            return sorted(set(self.named).intersection(there))
        ascending = sorted(there)
        return ascending if self.newest is None else ascending[-self.newest :]


def read_versions(value: Any) -> str | tuple[int, ...]:
    """Validate a setting: `latest`, `latest:N`, `all`, a version, or several as a list or comma-separated.

    Raises:
        ValueError: The setting is malformed.
    """
    if isinstance(value, str) and (value == "all" or _LATEST.fullmatch(value)):
        return value
    numbers = value.split(",") if isinstance(value, str) else value
    if isinstance(numbers, int):
        numbers = [numbers]
    if not isinstance(numbers, list | tuple) or not numbers or not all(map(_is_version, numbers)):
        raise ValueError("must be latest, latest:N, all, or versions such as 3,7")
    return tuple(sorted({int(number) for number in numbers}))


def read_labels(value: Any) -> dict[str, int]:
    """Validate labels: a mapping of names to versions.

    Raises:
        ValueError: The labels are malformed.
    """
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of labels to versions, such as stable: 3")
    for label in value:
        if not isinstance(label, str) or not is_name(label):
            raise ValueError(f"must have labels of {NAME_RULE}, not {label!r}")
    for number in value.values():
        if not _is_version(number):
            raise ValueError(f"must have whole numbers as versions, not {number!r}")
    return {label: int(number) for label, number in value.items()}


def _is_version(number: Any) -> bool:
    text = str(number).strip()
    return not isinstance(number, bool) and isinstance(number, int | str) and bool(_VERSION.fullmatch(text))


def check_named(name: str, policy: VersionPolicy, there: Collection[int]) -> None:
    """Refuse a policy that names missing versions."""
    missing = sorted(set(policy.named).difference(there))
    if missing:
        has = ", ".join(map(str, sorted(there))) or "none"
        raise InvalidSettings(f"{name} has no version {', '.join(map(str, missing))}; it has {has}")


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
