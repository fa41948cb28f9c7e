"""When memory is returned to the system that was freed, but is kept by the C library: large bodies leave much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stoker.gateway.http.body_budget import BodyBudget
from stoker.system.resources import private_memory

_KEPT_BYTES: Final = 128 << 20
"""Twice what the C library keeps for the next large body, so that memory in use is not taken away."""
_QUIET_LOOKS: Final = 3
_MOST_LOOKS: Final = 600
"""Tried again at growing intervals while nothing changes: gRPC holds messages for longer than is seen here."""
_BUSY_LOOKS: Final = 10
_CHANGED_BYTES: Final = 16 << 20
"""Memory that changes by so much in a second was in use: it may be free soon, and is looked at again by then."""


class TrimSchedule:
    """Says when much memory can be returned and nobody is about to use it again."""

    def __init__(self, budget: BodyBudget, read_bytes: Callable[[], int] = private_memory) -> None:
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
