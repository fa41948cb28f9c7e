"""What rows of an arena say of their urgency: written from the first request on that has something to say.

So it is known who holds how many of them, and nobody may take all.
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
"""The first column of what is said of it."""
_PLACED: Final = 2
"""Which of these columns says the caller."""
_MOST: Final = 2
"""A caller may hold fewer than so many times the free rows."""
_COUNTS: Final = 64
"""Rows are counted anew when such a part of them has come or gone."""


class Telling:
    """The frontend's side of the columns of one arena that say whose rows are, and how urgent.

    Attributes:
        begun: Whether they are written; then they are for each request.
        several: Whether a caller with a name has come.
    """

    __slots__ = ("_columns", "_counted_free", "_held", "_told", "begun", "several")

    def __init__(self, arena: Arena) -> None:
        self.begun = self.several = False
        self._held, self._counted_free = np.zeros(1, np.int64), -len(arena.queued)
        self._columns = arena.queued[:, _FIRST:]
        self._told = arena.told

    def tell(self, ticket: Ticket) -> None:
        """Write what a ticket says of its rows, before the device is told of them."""
        if not self.begun:
            # Of rows that the device has already nothing was said.
            self._columns[:] = (0, 1, USUAL.placed)
            self._told[0] = self.begun = True
        urgency = ticket.urgency or USUAL
        self._columns[ticket.row_numbers] = (ticket.target_ns, ticket.rows, urgency.placed)
        if urgency.caller.number:
            self.several = True

    def crowds(self, ticket: Ticket, free: Sequence[int]) -> bool:
        """Whether a ticket's caller holds twice the rows that are free, or more, where there are several callers.

        So the last third of the rows is for others, and a caller who comes to a flood finds some.

        Args:
            ticket: A request that has no rows yet.
            free: The numbers of the rows that are free.
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
