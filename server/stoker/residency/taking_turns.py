"""Callers take turns: the one whose last turn was longest ago is next; who was long away counts as new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_REMEMBERED: Final = 1024


class RecentTurns:
    """When each of the latest 1,024 callers had its last turn."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._last)

    def last_turn(self, caller: str) -> int:
        """Return the number of a caller's last turn; 0 if it had none, or 1,024 others have had turns since."""
        return self._last.get(caller, 0)

    def next_of(self, callers: Iterable[str]) -> str | None:
        """Return the caller whose last turn is the longest ago, of equals the first; None of none."""
        return min(callers, key=self.last_turn, default=None)

    def record(self, caller: str) -> None:
        """Record that a caller has its turn now."""
        self._count += 1
        self._last.pop(caller, None)
        self._last[caller] = self._count
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
