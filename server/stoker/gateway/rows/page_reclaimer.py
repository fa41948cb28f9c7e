"""Returns the memory of rows that are not used to the system."""

from __future__ import annotations

from typing import Final

from stoker.arena import Arena

_UNUSED_NS: Final = 1_000_000_000
_WARM_ROWS: Final = 64
"""This many rows beside those in use keep their memory."""


class PageReclaimer:
    """Returns the memory of an arena's free rows to the system, one row at a time."""

    def __init__(self, arena: Arena, now_ns: int) -> None:
        self._arena = arena
        self._cold_rows, self._untouched_rows = 0, arena.capacity
        self._since_ns = now_ns

    def reclaim(self, free: list[int], now_ns: int) -> None:
        """Return the memory of one row that has not been needed for a second.

        Args:
            free: The free rows; they are leased from the end of the list, and put back there.
        """
        self._untouched_rows = min(self._untouched_rows, len(free))
        if now_ns - self._since_ns >= _UNUSED_NS:
            self._cold_rows = max(0, self._untouched_rows - _WARM_ROWS)
            self._untouched_rows, self._since_ns = len(free), now_ns
        if self._cold_rows and not self._arena.give_back_kept_pages(free[: self._cold_rows]):
            self._cold_rows = 0
