"""Actions that run after a delay, on a thread of their own and a few writers."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx

__all__ = ["DelayedActions"]

_WRITERS: Final = 8


class DelayedActions:
    """A thread that hands each action to the writers once its delay has passed.

    Attributes:
        writers: The threads that run the actions.
    """

    def __init__(self) -> None:
        self.writers = ThreadPoolExecutor(_WRITERS)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; actions not yet due are dropped."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def schedule(self, after_s: float, action: Callable[[], None]) -> None:
        """Run an action after a delay."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + after_s, next(self._numbers), action))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if not self._stopped and (wait_s is None or wait_s > 0):
                    self._changed.wait(wait_s)
                if self._stopped:
                    return
                if not self._due or self._due[0][0] > time.monotonic():
                    continue
                _, _, action = heapq.heappop(self._due)
            self.writers.submit(_run_while_the_api_lives, action)


def _run_while_the_api_lives(action: Callable[[], None]) -> None:
    try:
        action()
    except (httpx.HTTPError, RuntimeError):
        # The API has ended first.
        return
