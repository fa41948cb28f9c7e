"""The maximum age of connections, spread so that they do not end together."""

from __future__ import annotations

import math
from typing import Final

# The fractional parts of its multiples fill the space between 0 and 1 evenly.
_GOLDEN: Final = (5**0.5 - 1) / 2


class ConnectionAges:
    """Spreads the ends of connections: those that were made together, or one after the other, do not end together.

    Args:
        age_s: The maximum age of connections; 0 for any age.
        youngest: The least share of it at which connections end; others end as much above it.
    """

    def __init__(self, age_s: float, youngest: float) -> None:
        self._age_s, self._youngest = age_s, youngest
        self._made = 0

    def end_s(self, now_s: float) -> float:
        """Return when a connection that is made now has to end."""
        if not self._age_s:
            return math.inf
        self._made += 1
        return now_s + self._age_s * (self._youngest + (1 - self._youngest) * 2 * (self._made * _GOLDEN % 1))
