"""When a running batch is audited: one in so many, and for next to none of the device's time."""

from __future__ import annotations

import random
from typing import Final

__all__ = ["AuditSchedule"]

_SHARE: Final = 0.001
_FIRST_AFTER_NS: Final = 1_000_000_000
_RUNS: Final = 2
"""So many runs of the batch an audit is expected to take: one, and what its rows are made with."""
_PAUSE_BATCHES: Final = 16
_LONG: Final = 1e15
_SEED: Final = 20260721


class AuditSchedule:
    """Says of one model in one device process which batches are audited. One thread at a time may call.

    The account is kept in time: what audits have taken, and the next one is expected to take, is at most a thousandth
    of what batches have. So there may be fewer than the rate says.
    """

    def __init__(
        self,
        rate: float,
        *,
        share: float | None = _SHARE,
        first_after_ns: int = _FIRST_AFTER_NS,
    ) -> None:
        """Begin with no time in the account.

        Args:
            rate: How many of all batches are audited, above 0 and at most 1.
            share: How much of the time that batches take audits may take; None does not limit it.
            first_after_ns: So long batches have to have run before the first audit.
        """
        self._most_gap = max(1, round(min(2 / rate, _LONG)) - 1)
        self._share = share
        self._first_after_ns = first_after_ns
        # Intervals differ, so that nothing that comes regularly is always missed.
        self._random = random.Random(_SEED)  # noqa: S311  # nobody has to be surprised by it
        self._computed_ns = 0
        self._audited_ns = 0
        self._under_way = False
        self._left = self._gap()

    def count(self, elapsed_ns: int) -> bool:
        """Take in that a batch took `elapsed_ns`; returns whether a row of the next one is to be kept."""
        self._computed_ns += elapsed_ns
        self._left -= 1
        return self._left <= 0 and self._may(elapsed_ns)

    def begin(self, elapsed_ns: int) -> bool:
        """Whether an audit of a batch that took `elapsed_ns` may begin; `end` follows if it may."""
        if self._left > 0 or not self._may(elapsed_ns):
            return False
        self._under_way = True
        return True

    def end(self, elapsed_ns: int) -> None:
        """Take in that an audit took `elapsed_ns`."""
        self._under_way = False
        self._audited_ns += elapsed_ns
        self._left = self._gap()

    def postpone(self) -> None:
        """Let some batches pass, because somebody waits: looking after each would cost them as much."""
        self._left = min(_PAUSE_BATCHES, self._most_gap)

    def _may(self, elapsed_ns: int) -> bool:
        if self._under_way or self._computed_ns < self._first_after_ns:
            return False
        expected_ns = self._audited_ns + _RUNS * elapsed_ns
        return self._share is None or expected_ns <= self._share * self._computed_ns

    def _gap(self) -> int:
        return self._random.randint(1, self._most_gap)
