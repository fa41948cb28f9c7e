"""What becomes of rows whose answers would come after their target."""

from __future__ import annotations

from typing import Literal

__all__ = ["Late"]

Late = Literal["answer", "refuse"]
