"""Caller and urgency of the rows of an arena: written from the first request on that has any.

So the number of rows that each caller holds is known, and no caller may take all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stoker.arena import Arena
from stoker.gateway.rows.ticket import Ticket
from stoker.gateway.rows.urgency import USUAL
from stoker.placed import CALLER_MASK

__all__ = ["Telling"]

_FIRST: Final = 3
"""The first of the columns for caller and urgency."""
_PLACED: Final = 2
"""Which of these columns holds the caller."""
_MOST: Final = 2
"""A caller must hold fewer rows than this many times the free rows."""
_COUNTS: Final = 64
"""Rows are counted again when a 64th of them has been leased or freed."""


class Telling:
    """The frontend's side of the caller and urgency columns of one arena.

    Attributes:
        begun: Whether the columns are written; from then on they are for each request.
        several: Whether a request of a named caller has come.
    """

    __slots__ = ("_columns", "_counted_free", "_held", "_told", "begun", "several")

    def __init__(self, arena: Arena) -> None:
        self.begun = self.several = False
        self._held, self._counted_free = np.zeros(1, np.int64), -len(arena.queued)
        self._columns = arena.queued[:, _FIRST:]
        self._told = arena.told

    def tell(self, ticket: Ticket) -> None:
        """Write caller and urgency of a ticket's rows, before the device is told of them."""
        if not self.begun:
            # Rows that the device already has were queued without them.
            self._columns[:] = (0, 1, USUAL.placed)
            self._told[0] = self.begun = True
        urgency = ticket.urgency or USUAL
        self._columns[ticket.row_numbers] = (ticket.target_ns, ticket.rows, urgency.placed)
        if urgency.caller.number:
            self.several = True

    def crowds(self, ticket: Ticket, free: Sequence[int]) -> bool:
        """Whether a ticket's caller holds at least twice as many rows as are free, where there are several callers.

        So a third of the rows remains for others, and a caller that arrives during another one's flood finds some.

        Args:
            ticket: A request that has no rows yet.
            free: The numbers of the free rows.
        """
        capacity = len(self._columns)
        if len(free) * (_MOST + 1) >= capacity:
            return False
        if abs(len(free) - self._counted_free) * _COUNTS >= capacity:
            taken = np.ones(capacity, bool)
            taken[np.array(free, np.int64)] = False
            self._held = np.bincount(self._columns[taken, _PLACED] & CALLER_MASK)
            self._counted_free = len(free)
        caller = (ticket.urgency or USUAL).caller.number
        return caller < len(self._held) and int(self._held[caller]) >= _MOST * len(free)
