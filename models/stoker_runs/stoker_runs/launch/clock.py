"""The clock of a runner: one of the world, one that no correction moves, and waiting."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """The machine's clocks; tests have one that does not wait."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def elapsed_s(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
