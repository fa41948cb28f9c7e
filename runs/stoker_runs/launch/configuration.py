"""A run configuration as a file, `NAME.yaml`: what the options of `stoker submit` say, in one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.readers import check_keys, number_of, read_value, unknown_setting

_UNITS_S: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"\s*(?P<number>[0-9]+(\.[0-9]+)?)\s*(?P<unit>[smhd]?)\s*", re.ASCII)


def read_duration_s(value: Any) -> float:
    """Return the seconds of `90`, `90s`, `30m`, `2h`, `1.5d`.

    Raises:
        ValueError: It is none.
    """
    found = _DURATION.fullmatch(str(value).lower())
    if found is None or isinstance(value, bool) or float(found["number"]) <= 0:
        raise ValueError("must be a duration above 0, such as 90s, 30m or 2h")
    return float(found["number"]) * _UNITS_S[found["unit"]]


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        raise ValueError("must be a text")
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list")
    return tuple(map(str, value))


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be a mapping of names to values")
    return {str(name): str(one) for name, one in value.items()}


_ENVIRONMENT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "file": _text,
    "python": _text,
    "variables": _labels,
    "as_of": _text,
    "image": _text,
    "dockerfile": _text,
}


def _environment(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"must be a mapping of {', '.join(_ENVIRONMENT)}")
    check_keys(value, list(_ENVIRONMENT))
    return {key: read_value(key, one, _ENVIRONMENT[key], "environment") for key, one in value.items()}


_WHOLE: Final = number_of(int, 0, 1_000_000)
_KEYS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "target": _text,
    "script": _text,
    "arguments": _texts,
    "experiment": _text,
    "environment": _environment,
    "inputs": _labels,
    "outputs": _labels,
    "nodes": _WHOLE,
    "processes_per_node": _WHOLE,
    "gpus": _WHOLE,
    "cores": _WHOLE,
    "max_duration": read_duration_s,
    "attempts": _WHOLE,
    "tags": _labels,
}
"""The keys of a file, and what reads their values."""
SETTINGS: Final = tuple(_KEYS)
"""The keys of a run configuration."""


def read_configuration(path: Path) -> dict[str, Any]:
    """Read a run configuration.

    Args:
        path: The file; `.yaml` may be left out.

    Returns:
        The keys that it has, with their values read. Paths in it are taken from its folder.

    Raises:
        InvalidSettings: There is no such file, or a key or value is none; the message names the nearest key.
    """
    from stoker.settings.yaml_files import read_yaml

    file = path if path.is_file() else path.with_name(f"{path.name}.yaml")
    if not file.is_file():
        raise InvalidSettings(f"there is no run configuration {path}, nor {file}")
    return settings_of(file, read_yaml(file, "run configuration", "keys of a run configuration"))


def settings_of(file: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings of a run from a file's content.

    Args:
        file: The file; paths are taken from its folder.

    Raises:
        InvalidSettings: A key or value is none; the message names the nearest key.
    """
    read: dict[str, Any] = {}
    for key, value in content.items():
        if key not in _KEYS:
            raise unknown_setting(key, SETTINGS, str(file))
        read[key] = read_value(key, value, _KEYS[key], str(file))
    content = read
    environment = content.get("environment", {})
    for key in ("file", "dockerfile"):
        if key in environment:
            environment[key] = str(file.parent / environment[key])
    return content
