"""Versions of models: their states, labels, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker.errors import InvalidSettings
from stoker.settings.names import NAME_RULE, is_name

DEFAULT_LABEL: Final = "default"
"""The label of the version for requests that name none."""

State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
"""The states of a version, as in TensorFlow Serving."""

Residence = Literal["loaded", "loading", "unloading", "unloaded"]
"""Whether an available version is in memory; others are loaded with their next request."""

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
        """Whether it waits for a request: it is available, but not in memory."""
        return self.state == "AVAILABLE" and self.residence == "unloaded"

    @property
    def shown_state(self) -> State:
        """The state that callers see: a version that waits for a request is in START."""
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
