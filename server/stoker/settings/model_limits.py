"""Limits of groups of models: rows or device time per second that all models of a pattern share, for all callers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.names import checked_pattern, matches_any
from stoker.settings.readers import number_of, read_members

MOST_LIMITS: Final = 64
_RATES: Final = ("rows_per_s", "device_ms_per_s")
_READERS: Final = dict.fromkeys((*_RATES, "burst_s"), number_of(float, 0.001, 1e12))


@dataclass(frozen=True, slots=True)
class ModelLimit:
    """The limit of a group of models.

    Attributes:
        pattern: Name of its models, in which `*` stands for any letters.
        number: Its number among the server's limits, from 0.
        rows_per_s: Rows per second; None for no limit.
        device_ms_per_s: Device time per second, in milliseconds; None for no limit.
        burst_s: Number of seconds of either that may be used at once.
    """

    pattern: str
    number: int
    rows_per_s: float | None = None
    device_ms_per_s: float | None = None
    burst_s: float = 2.0


def read_model_limits(value: Any) -> Mapping[str, Mapping[str, float]]:
    """Read limits by pattern, from a mapping or from JSON.

    Raises:
        ValueError: It is malformed. The message follows the setting's name.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, Mapping) or len(value) > MOST_LIMITS:
        raise ValueError(
            f"must have at most {MOST_LIMITS} limits by names of models, for instance customer-*: "
            "{rows_per_s: 500}"
        )
    return {_checked(pattern): _read_limit(pattern, written) for pattern, written in value.items()}


def find_limit(limits: Mapping[str, Mapping[str, float]] | None, model: str) -> ModelLimit | None:
    """Return the limit of a model, the first whose pattern it matches; None without."""
    for number, (pattern, terms) in enumerate((limits or {}).items()):
        if matches_any(model, frozenset((pattern,))):
            return ModelLimit(pattern, number, **terms)
    return None


def _checked(pattern: Any) -> str:
    try:
        return checked_pattern(str(pattern))
    except InvalidSettings as error:
        raise ValueError(f"names models by {pattern!r}: {error}") from None


def _read_limit(pattern: str, written: Any) -> dict[str, float]:
    if not isinstance(written, Mapping) or not any(rate in written for rate in _RATES):
        raise ValueError(f"needs {' or '.join(_RATES)} for {pattern}")
    return read_members(written, _READERS, f"for {pattern} ")
