"""Lets batches of all instances of a model run at the same time, or a single one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Occupancy:
    """Counts running batches, and lets one run alone. All methods may be called on any thread.

    Attributes:
        several: Whether there are several instances; if not, all methods do nothing.
        running: How many batches run now; 0 where there is one instance.
    """

    def __init__(self) -> None:
        self.several = False
        self._changed = threading.Condition(threading.Lock())
        self.running = 0
        self._one_alone = False

    def enter(self) -> int:
        """Begin a batch; waits while another one runs alone. Returns how many are running."""
        if not self.several:
            return 1
        with self._changed:
            self._changed.wait_for(lambda: not self._one_alone)
            self.running += 1
            return self.running

    def leave(self) -> None:
        """End a batch."""
        if self.several:
            with self._changed:
                self.running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Continue a batch that has begun, while no other one runs."""
        if not self.several:
            yield
            return
        with self._changed:
            # It leaves the count before it waits: another batch may want to run alone too.
            self.running -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._one_alone)
            self._one_alone = True
            self._changed.wait_for(lambda: not self.running)
            self.running += 1
        try:
            yield
        finally:
            with self._changed:
                self._one_alone = False
                self._changed.notify_all()
