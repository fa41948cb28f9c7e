"""Rows that a burst has used and nobody has needed since: the memory that they keep is given back."""

from __future__ import annotations

from typing import Final

from stoker.arena import Arena

__all__ = ["Cooling"]

_COOLING_NS: Final = 1_000_000_000
_WARM_ROWS: Final = 64
"""So many rows beside those in use keep the memory that they have."""


class Cooling:
    """Gives back the memory of an arena's rows, one at a time.

    Args:
        arena: The rows.
        now_ns: The time on the exchange's clock.
    """

    def __init__(self, arena: Arena, now_ns: int) -> None:
        self._arena = arena
        self._cold_rows, self._untouched_rows = 0, arena.capacity
        self._since_ns = now_ns

    def cool(self, free: list[int], now_ns: int) -> None:
        """Give back the memory of one row, if nobody has needed it for a second.

        Args:
            free: The rows that are not leased: they are leased from the end, and come back there.
            now_ns: The time on the exchange's clock.
        """
        self._untouched_rows = min(self._untouched_rows, len(free))
        if now_ns - self._since_ns >= _COOLING_NS:
            self._cold_rows = max(0, self._untouched_rows - _WARM_ROWS)
            self._untouched_rows, self._since_ns = len(free), now_ns
        if self._cold_rows and not self._arena.give_back_kept_pages(free[: self._cold_rows]):
            self._cold_rows = 0
