"""Loads models beside those that serve, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from stoker.deployment import Deployment
from stoker.system.vital_work import start_thread


class LoaderThread:
    """Loads models beside those that serve, one after the other, on a thread of its own."""

    def __init__(self, load: Callable[[Deployment], None]) -> None:
        self._load = load
        self._models: SimpleQueue[Deployment] = SimpleQueue()
        self._numbers: set[int] = set()
        self._changed = threading.Condition()
        start_thread(self._live, "loader")

    def add(self, model: Deployment) -> None:
        """Load a model after those that were added before."""
        with self._changed:
            self._numbers.add(model.number)
        self._models.put(model)

    def wait(self, number: int) -> None:
        """Wait until the model with this number is loaded or has failed, if it was added."""
        with self._changed:
            self._changed.wait_for(lambda: number not in self._numbers)

    def _live(self) -> None:
        while True:
            model = self._models.get()
            self._load(model)
            with self._changed:
                self._numbers.discard(model.number)
                self._changed.notify_all()
