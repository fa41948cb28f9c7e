"""Token buckets: what may be drawn at once, and in the long run."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Bucket"]

_ROUNDING: Final = 1e-6


class Bucket:
    """A rate, and what has gathered of it.

    What is drawn is told as a total over all who draw. So several may have a bucket each for one rate: as all of them
    see the same total, together they let no more through than one would.

    Args:
        per_s: What flows in each second.
        burst_s: How many seconds of that it holds, but at least 1.
        drawn: The total of what has been drawn by now. The bucket begins full.
        now_ns: The time.

    Attributes:
        per_s: As given, or changed since.
        size: The most that it holds.
        level: What it held when it was looked at last; less than 0 where more was drawn than there was.
    """

    __slots__ = ("_at_ns", "_drawn", "level", "per_s", "size")

    def __init__(self, per_s: float, burst_s: float, drawn: float, now_ns: int) -> None:
        self.per_s = per_s
        self.size = self.level = max(1.0, per_s * burst_s)
        self._drawn, self._at_ns = drawn, now_ns

    def change(self, per_s: float, burst_s: float) -> None:
        """Let another rate flow in from when it was looked at last; what it holds stays, as far as there is room."""
        self.per_s = per_s
        self.size = max(1.0, per_s * burst_s)
        self.level = min(self.level, self.size)

    def look(self, now_ns: int, drawn: float) -> float:
        """See what it holds.

        What others have drawn since it was looked at is taken to be drawn last, when it could hold no more: so where
        it overflowed it says too little rather than too much, by what flows in between two looks.

        Args:
            now_ns: The time.
            drawn: The total of what has been drawn by then.
        """
        flown = max(0, now_ns - self._at_ns) * self.per_s / 1e9
        self.level = min(self.size, self.level + flown) - (drawn - self._drawn)
        self._drawn, self._at_ns = drawn, max(now_ns, self._at_ns)
        return self.level

    def draw(self, amount: float) -> None:
        """Draw some; the next total has it in it."""
        self.level -= amount
        self._drawn += amount

    def wait_ns(self, amount: float) -> int:
        """In how long it holds an amount, if nobody draws; 0 for now. Of more than its size that is never true."""
        missing = amount - self.level
        return 0 if missing <= _ROUNDING else math.ceil(missing / self.per_s * 1e9)
