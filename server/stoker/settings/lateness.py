"""What becomes of rows whose answers would come after their target, and which go before others."""

from __future__ import annotations

from typing import Literal

__all__ = ["Late", "Tier"]

Late = Literal["answer", "refuse"]
Tier = Literal["high", "normal", "low"]
