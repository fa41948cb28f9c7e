"""The limit on the pixels of all image requests of a frontend, from their arrival until they are rows."""

from __future__ import annotations

import threading

from stoker.errors import Overloaded


class PixelBudget:
    """A limit that all image models of a frontend share, on any thread; a single request always fits."""

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._taken = 0
        self._lock = threading.Lock()

    def change(self, old: int, new: int) -> None:
        """Change what a request has taken from `old` to `new` pixels; raise Overloaded if there is no room."""
        with self._lock:
            others = self._taken - old
            if new > old and others and others + new > self._max_pixels:
                raise Overloaded("Too many pixels wait to be decoded; try again later.", retry_after_s=1)
            self._taken = others + new


class PixelShare:
    """The pixels that one request has taken."""

    def __init__(self, budget: PixelBudget, pixels: int) -> None:
        """Take pixels."""
        budget.change(0, pixels)
        self._budget = budget
        self.pixels = pixels

    def resize(self, pixels: int) -> None:
        """Take another number of pixels; 0 when the request is done."""
        self._budget.change(self.pixels, pixels)
        self.pixels = pixels
