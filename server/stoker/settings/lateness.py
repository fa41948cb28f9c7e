"""What becomes of rows whose answers would come after their target, and which go before others."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = ["TIERS", "Late", "Tier"]

Late = Literal["answer", "refuse"]
Tier = Literal["high", "normal", "low"]
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
"""The names of tiers, by their numbers: the most urgent first."""
