"""Small values of settings that several processes know: the words of choices, and what one load adjusts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["NON_FINITE", "TIERS", "WORDS", "Adjustments", "Admission", "Late", "NonFinite", "Tier"]

_Settings = TypeVar("_Settings", bound="DataclassInstance")

Admission = Literal["target", "rows"]
Late = Literal["answer", "refuse"]
Tier = Literal["high", "normal", "low"]
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
"""The names of tiers, by their numbers: the most urgent first."""

NonFinite = Literal["words", "null", "error"]
"""NaN and infinities are written as `NaN`, `Infinity` and `-Infinity`, as `null`, or the request fails."""

NON_FINITE: Final[tuple[NonFinite, ...]] = get_args(NonFinite)
WORDS: Final[NonFinite] = "words"


@dataclasses.dataclass(frozen=True, slots=True)
class Adjustments:
    """Settings of a model that one load replaces; None keeps the setting. See `ModelSettings`."""

    max_batch_rows: int | None = None
    max_delay_ms: float | None = None
    instances: int | None = None
    device: tuple[str, ...] | None = None

    def over(self, settings: _Settings) -> _Settings:
        """Return `ModelSettings` with these values."""
        names = (field.name for field in dataclasses.fields(self))
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return dataclasses.replace(settings, **given)
