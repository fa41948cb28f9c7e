"""Memory that large bodies leave behind: the C library keeps it for the threads that had it, busy or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from stoker.gateway.http.body_budget import BodyBudget

__all__ = ["Leftovers", "private_bytes"]

_KEPT_BYTES: Final = 128 << 20
"""Twice what the C library keeps for the next large body, so that this is not taken from who uses it."""
_QUIET_LOOKS: Final = 3
_MOST_LOOKS: Final = 600
"""It is tried again, ever more seldom: threads of gRPC hold messages longer than anybody sees."""


def private_bytes() -> int:
    """What this process has of the memory for itself: not its files, nor the rows that it shares with devices."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


class Leftovers:
    """Says when there is much to give back, and nobody who is about to use it again.

    Args:
        budget: Where large bodies are while they are used.
        read_bytes: How much memory the process has.
    """

    def __init__(self, budget: BodyBudget, read_bytes: Callable[[], int] = private_bytes) -> None:
        self._budget = budget
        self._read_bytes = read_bytes
        self._needed_bytes = read_bytes()
        self._quiet_looks, self._looks = 0, _QUIET_LOOKS

    def due(self) -> bool:
        """Whether freed memory is to be given back now; called once a second."""
        now_bytes = self._read_bytes()
        self._needed_bytes = min(self._needed_bytes, now_bytes)
        if self._budget.held_bytes or now_bytes - self._needed_bytes < _KEPT_BYTES:
            self._quiet_looks, self._looks = 0, _QUIET_LOOKS
            return False
        self._quiet_looks += 1
        if self._quiet_looks < self._looks:
            return False
        self._quiet_looks, self._looks = 0, min(2 * self._looks, _MOST_LOOKS)
        return True
