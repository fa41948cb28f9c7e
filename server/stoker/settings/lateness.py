"""What becomes of requests whose answers would come after their target, and which go before others."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = ["TIERS", "Admission", "Late", "Tier"]

Admission = Literal["target", "rows"]
Late = Literal["answer", "refuse"]
Tier = Literal["high", "normal", "low"]
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
"""The names of tiers, by their numbers: the most urgent first."""
