"""Busy polling of the event loop while a fast model has a single row, instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from stoker.arena import AWAKE_NS

__all__ = ["Wakefulness"]


class _RowsHolder(Protocol):
    """The part of the exchange that this needs."""

    lost: bool

    @property
    def leased_rows(self) -> int:
        """Rows that requests hold now."""
        ...


class Wakefulness:
    """Keeps one event loop polling.

    Attributes:
        quick: Whether the model's answers come fast enough for polling to pay.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock_ns: Callable[[], int]) -> None:
        self.quick = False
        self._loop, self._clock_ns = loop, clock_ns
        self._until_ns = 0

    def begin(self, holder: _RowsHolder, queued_ns: int) -> None:
        """Poll for the answer to the only row, queued just now, while it is likely to come soon."""
        if self.quick:
            self._until_ns = queued_ns + AWAKE_NS
            self._loop.call_soon(self._go_on, holder)

    def _go_on(self, holder: _RowsHolder) -> None:
        if holder.leased_rows == 1 and not holder.lost and self._clock_ns() < self._until_ns:
            self._loop.call_soon(self._go_on, holder)
