"""A thread that writes what the event loop queues, without slowing requests down.

The event loop only appends to a queue, which its owner bounds. The thread shares the interpreter lock with the event
loop, so it works in slices of half a millisecond and takes at most a fifth of the time.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Final, Generic, TypeVar

_SLICE_S: Final = 0.0005
_REST_RATIO: Final = 4

_Queued = TypeVar("_Queued")
_Encoded = TypeVar("_Encoded")


class BackgroundWriter(ABC, Generic[_Queued, _Encoded]):
    """The queue and its thread; a subclass encodes and writes."""

    def __init__(self, name: str, tick_s: float) -> None:
        """Begin with an empty queue, which the thread looks at each `tick_s`."""
        self._queue: deque[_Queued] = deque()
        self._tick_s = tick_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _encode(self, queued: _Queued) -> _Encoded:
        """Encode one entry of the queue."""

    @abstractmethod
    def _write(self, encoded: list[_Encoded]) -> None:
        """Write the entries of a slice; must not raise."""

    def start(self) -> None:
        """Start the writing thread."""
        self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued and stop; what is not written within `timeout_s` is lost."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        """Write until this is closed; runs on the thread."""
        while not self._closing.wait(self._tick_s):
            self.write_queued()
        self.write_queued()

    def write_queued(self) -> None:
        """Write all that is queued, in slices with pauses between them unless this is being closed."""
        while self._queue:
            begun_s = time.thread_time()
            encoded = []
            while self._queue and time.thread_time() - begun_s < _SLICE_S:
                encoded.append(self._encode(self._queue.popleft()))
            self._write(encoded)
            self._closing.wait(_REST_RATIO * (time.thread_time() - begun_s))
