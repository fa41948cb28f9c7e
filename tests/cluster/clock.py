"""A time that tests move."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """A clock that begins at the present monotonic time and stands still.

    Attributes:
        now_s: What it says.
    """

    def __init__(self) -> None:
        self.now_s = time.monotonic()

    def __call__(self) -> float:
        return self.now_s
