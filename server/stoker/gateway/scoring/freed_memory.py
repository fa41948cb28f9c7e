"""Returns memory to the system that was freed, but is kept by the C library: large bodies and images leave much."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from stoker.gateway.http.body_budget import BodyBudget


def trim_heap() -> None:
    """Return freed memory to the system. Takes milliseconds for each gigabyte, without the interpreter lock.

    glibc keeps blocks that threads have freed below its mmap threshold for ever.
    """
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    # Other C libraries keep less, and have no such function.
    return getattr(ctypes.CDLL(None), "malloc_trim", None) or (lambda _: None)


_KEPT_BYTES: Final = 128 << 20
"""Twice what the C library keeps for the next large body, so that memory in use is not taken away."""
_QUIET_LOOKS: Final = 3
_MOST_LOOKS: Final = 600
"""Tried again at growing intervals while nothing changes: gRPC holds messages for longer than is seen here."""
_BUSY_LOOKS: Final = 10
_CHANGED_BYTES: Final = 16 << 20
"""Memory that changes by so much in a second was in use: it may be free soon, and is looked at again by then."""


def private_bytes() -> int:
    """The private memory of this process: without its files, and without the rows shared with devices."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


class TrimSchedule:
    """Says when much memory can be returned and nobody is about to use it again."""

    def __init__(self, budget: BodyBudget, read_bytes: Callable[[], int] = private_bytes) -> None:
        self._budget = budget
        self._read_bytes = read_bytes
        self._needed_bytes = self._seen_bytes = read_bytes()
        self._quiet_looks, self._looks = 0, _QUIET_LOOKS

    def due(self) -> bool:
        """Whether freed memory should be returned now; called once a second."""
        now_bytes = self._read_bytes()
        self._needed_bytes = min(self._needed_bytes, now_bytes)
        if abs(now_bytes - self._seen_bytes) >= _CHANGED_BYTES:
            # Such as answers that slow readers have not taken: giving back during their time has not helped.
            self._looks = min(self._looks, _BUSY_LOOKS)
        self._seen_bytes = now_bytes
        if self._budget.held_bytes or now_bytes - self._needed_bytes < _KEPT_BYTES:
            self._quiet_looks, self._looks = 0, _QUIET_LOOKS
            return False
        self._quiet_looks += 1
        if self._quiet_looks < self._looks:
            return False
        self._quiet_looks, self._looks = 0, min(2 * self._looks, _MOST_LOOKS)
        return True
