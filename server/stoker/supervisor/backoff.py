"""Growing delays between the starts of a process that ends again and again."""

from __future__ import annotations

from typing import Final


class Backoff:
    """Growing delays between restarts; they start over once a process has run for long enough."""

    _FIRST_S: Final = 0.25
    _LONGEST_S: Final = 30.0
    _HEALTHY_S: Final = 60.0

    def __init__(self) -> None:
        self._next_s = self._FIRST_S

    def delay_s(self, lived_s: float) -> float:
        """Seconds to wait before the next start of a process that lived `lived_s`."""
        if lived_s >= self._HEALTHY_S:
            self._next_s = self._FIRST_S
        delay_s, self._next_s = self._next_s, min(self._LONGEST_S, 2 * self._next_s)
        return delay_s
