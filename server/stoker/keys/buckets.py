"""Token buckets: rate limits that allow bursts."""

from __future__ import annotations

import math
from typing import Final

_ROUNDING: Final = 1e-6


class Bucket:
    """A token bucket, full at the start.

    The total drawn by all processes is passed in (decision 33). So each process may have its own bucket for one rate:
    as they all see the same total, together they admit no more than a single bucket would.

    Args:
        burst_s: Its size in seconds of that rate; the size is at least 1.

    Attributes:
        level: The level at the last update; negative if more was drawn than available.
    """

    __slots__ = ("_at_ns", "_drawn", "level", "per_s", "size")

    def __init__(self, per_s: float, burst_s: float, drawn: float, now_ns: int) -> None:
        self.per_s = per_s
        self.size = self.level = max(1.0, per_s * burst_s)
        self._drawn, self._at_ns = drawn, now_ns

    def change(self, per_s: float, burst_s: float) -> None:
        """Change rate and size, effective since the last update; the level stays, limited to the new size."""
        self.per_s = per_s
        self.size = max(1.0, per_s * burst_s)
        self.level = min(self.level, self.size)

    def update(self, now_ns: int, drawn: float) -> float:
        """Update the level to a time and the total drawn by then, and return it.

        Others' draws since the last update are deducted after refilling up to the size: if the bucket overflowed
        meanwhile, the level is too low rather than too high, by at most the inflow between two updates.
        """
        flown = max(0, now_ns - self._at_ns) * self.per_s / 1e9
        self.level = min(self.size, self.level + flown) - (drawn - self._drawn)
        self._drawn, self._at_ns = drawn, max(now_ns, self._at_ns)
        return self.level

    def draw(self, amount: float) -> None:
        """Draw an amount; the next total includes it."""
        self.level -= amount
        self._drawn += amount

    def wait_ns(self, amount: float) -> int:
        """Return the time until the bucket holds an amount without further draws; 0 for now."""
        missing = amount - self.level
        return 0 if missing <= _ROUNDING else math.ceil(missing / self.per_s * 1e9)
