"""How fast a device serves the rows of a frontend, from which callers learn when to come again."""

from __future__ import annotations

import math
from typing import Final

_INTERVAL_NS: Final = 500_000_000
_MAX_RETRY_AFTER_MS: Final = 60_000


class ServiceRate:
    """Rows per second, over intervals in which the device had rows to run."""

    def __init__(self, now_ns: int) -> None:
        self._rows_s = 0.0
        self._since_ns, self._done_rows = now_ns, 0

    def update(self, now_ns: int, leased_rows: int, done_rows: int) -> None:
        """Update the rate."""
        if not leased_rows:
            self._since_ns, self._done_rows = now_ns, done_rows
        elif now_ns - self._since_ns >= _INTERVAL_NS:
            rows_s = (done_rows - self._done_rows) * 1e9 / (now_ns - self._since_ns)
            self._rows_s = rows_s if not self._rows_s else (rows_s + self._rows_s) / 2
            self._since_ns, self._done_rows = now_ns, done_rows

    def retry_after_ms(self, leased_rows: int) -> int:
        """Return the milliseconds in which this many rows are served: at least 1, at most a minute."""
        wait_s = leased_rows / self._rows_s if self._rows_s else 1.0
        return min(_MAX_RETRY_AFTER_MS, max(1, math.ceil(wait_s * 1000)))
