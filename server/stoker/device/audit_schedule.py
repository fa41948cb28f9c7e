"""Decides which batches of a model are audited, by counting them and by an account of time."""

from __future__ import annotations

import random
from typing import Final

_SHARE: Final = 0.001
_FIRST_AFTER_NS: Final = 1_000_000_000
_RUNS: Final = 2
"""An audit is expected to cost this many runs of the batch: its own run, and preparing its rows."""
_PAUSE_BATCHES: Final = 16
_LONG: Final = 1e15
_SEED: Final = 20260721


class AuditSchedule:
    """Decides for one model in one device process which batches are audited. One thread at a time may call it.

    Audits are limited by time: what they have taken, with the next one, is at most a thousandth of the time of all
    batches. So there may be fewer than the rate asks for.
    """

    def __init__(
        self,
        rate: float,
        *,
        share: float | None = _SHARE,
        first_after_ns: int = _FIRST_AFTER_NS,
    ) -> None:
        """Start without any audit time used.

        Args:
            rate: How many of all batches are audited, above 0 and at most 1.
            share: The share of the batches' time that audits may take; None for no limit.
            first_after_ns: Batches have to run for this long before the first audit.
        """
        self._most_gap = max(1, round(min(2 / rate, _LONG)) - 1)
        self._share = share
        self._first_after_ns = first_after_ns
        # Intervals vary, so that a periodic pattern of requests is not always missed.
        self._random = random.Random(_SEED)  # noqa: S311  # nobody has to be surprised by it
        self._computed_ns = 0
        self._audited_ns = 0
        self._under_way = False
        self._left = self._gap()

    def count(self, elapsed_ns: int) -> bool:
        """Count a batch that took `elapsed_ns`; returns whether a row of the next one is to be kept."""
        self._computed_ns += elapsed_ns
        self._left -= 1
        return self._left <= 0 and self._may(elapsed_ns)

    def begin(self, elapsed_ns: int) -> bool:
        """Whether a batch that took `elapsed_ns` may be audited; if so, `end` has to be called after the audit."""
        if self._left > 0 or not self._may(elapsed_ns):
            return False
        self._under_way = True
        return True

    def end(self, elapsed_ns: int) -> None:
        """Record that an audit took `elapsed_ns`."""
        self._under_way = False
        self._audited_ns += elapsed_ns
        self._left = self._gap()

    def postpone(self) -> None:
        """Skip some batches because rows wait: checking again after each batch would delay them too."""
        self._left = min(_PAUSE_BATCHES, self._most_gap)

    def _may(self, elapsed_ns: int) -> bool:
        if self._under_way or self._computed_ns < self._first_after_ns:
            return False
        expected_ns = self._audited_ns + _RUNS * elapsed_ns
        return self._share is None or expected_ns <= self._share * self._computed_ns

    def _gap(self) -> int:
        return self._random.randint(1, self._most_gap)
