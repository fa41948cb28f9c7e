"""Which versions of a model are served: the policy, their life, and the labels that name versions for callers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker.errors import InvalidSettings
from stoker.names import NAME_RULE, is_name

__all__ = [
    "DEFAULT_LABEL",
    "Standing",
    "State",
    "VersionPolicy",
    "check_named",
    "read_labels",
    "read_versions",
]

DEFAULT_LABEL: Final = "default"
"""The label of the version that is meant where none is named."""

State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
"""The life of a version, in the words of TensorFlow Serving."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What has become of a version, as the supervisor knows it and tells it to frontends.

    Attributes:
        slot: Its slot in the metrics.
        state: Where it is in its life.
        reason: Why it is not available, or was not loaded again, or that it was unloaded.
        error: The code of the error that `reason` tells of; empty if it tells of none.
    """

    slot: int
    state: State = "START"
    reason: str = ""
    error: str = ""


_VERSION: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_LATEST: Final = re.compile(r"latest(?::([1-9][0-9]{0,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of the versions that there are should be served.

    Attributes:
        newest: How many of the newest; None for all.
        named: These and no others, whatever is newer.
    """

    newest: int | None = 1
    named: tuple[int, ...] = ()

    @classmethod
    def of(cls, setting: str | tuple[int, ...] | None) -> VersionPolicy:
        """The policy that a setting describes, as `read_versions` returns it; None is the newest one."""
        if setting is None:
            return cls()
        if isinstance(setting, tuple):
            return cls(None, setting)
        if setting == "all":
            return cls(None)
        _, _, count = setting.partition(":")
        return cls(int(count or 1))

    def choose(self, there: Collection[int]) -> list[int]:
        """Return the versions to serve of those that are there, ascending."""
        if self.named:
            return sorted(set(self.named).intersection(there))
        ascending = sorted(there)
        return ascending if self.newest is None else ascending[-self.newest :]


def read_versions(value: Any) -> str | tuple[int, ...]:
    """Check a setting: `latest`, `latest:N`, `all`, a version, or several as a list or with commas between them.

    Raises:
        ValueError: It is something else.
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
    """Check labels: a mapping of names to versions.

    Raises:
        ValueError: It is something else.
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
    """Refuse a policy that names versions which are not there.

    Raises:
        InvalidSettings: It does.
    """
    missing = sorted(set(policy.named).difference(there))
    if missing:
        has = ", ".join(map(str, sorted(there))) or "none"
        raise InvalidSettings(f"{name} has no version {', '.join(map(str, missing))}; it has {has}")
