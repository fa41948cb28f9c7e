"""How many pixels the image requests of a frontend may have together, from their arrival until they are rows."""

from __future__ import annotations

import threading

from stoker.errors import Overloaded

__all__ = ["PixelBudget", "PixelShare"]


class PixelBudget:
    """A budget that the requests of all image models of a frontend share; used from any thread.

    Args:
        max_pixels: How many pixels they may have together. One that is alone always fits.
    """

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._taken = 0
        self._lock = threading.Lock()

    def change(self, old: int, new: int) -> None:
        """Let a request that has taken `old` pixels take `new` ones instead.

        Raises:
            Overloaded: There is no room for so many more; what it had it keeps.
        """
        with self._lock:
            others = self._taken - old
            if new > old and others and others + new > self._max_pixels:
                raise Overloaded("Too many pixels wait to be decoded; try again later.", retry_after_s=1)
            self._taken = others + new


class PixelShare:
    """What one request has taken from the budget.

    Attributes:
        pixels: How many.
    """

    def __init__(self, budget: PixelBudget, pixels: int) -> None:
        """Take pixels.

        Raises:
            Overloaded: There is no room for so many.
        """
        budget.change(0, pixels)
        self._budget = budget
        self.pixels = pixels

    def become(self, pixels: int) -> None:
        """Take another number of pixels; 0 when the request is done.

        Raises:
            Overloaded: There is no room for so many more.
        """
        self._budget.change(self.pixels, pixels)
        self.pixels = pixels
