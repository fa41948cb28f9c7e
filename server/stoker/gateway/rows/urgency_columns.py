"""The columns of an arena for the caller and the urgency of each row, and how many rows each caller holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stoker.arena import CALLER_MASK, Arena
from stoker.gateway.rows.ticket import Ticket
from stoker.gateway.rows.urgency import DEFAULT_URGENCY

_FIRST_COLUMN: Final = 3
"""The first of the columns for caller and urgency."""
_CALLER_COLUMN: Final = 2
"""The column of the caller."""
_FREE_RATIO: Final = 2
"""A caller must hold fewer rows than this many times the free rows."""
_RECOUNT_SHARE: Final = 64
"""Rows are counted again when a 64th of them has been leased or freed."""


class UrgencyColumns:
    """The frontend's side of the caller and urgency columns of one arena.

    Attributes:
        is_written: Whether the columns are written; from then on they are for each request.
        has_callers: Whether a request of a named caller has come.
    """

    __slots__ = ("_columns", "_counted_free", "_flag", "_held", "has_callers", "is_written")

    def __init__(self, arena: Arena) -> None:
        self.is_written = self.has_callers = False
        self._held, self._counted_free = np.zeros(1, np.int64), -len(arena.queued)
        self._columns = arena.queued[:, _FIRST_COLUMN:]
        self._flag = arena.has_urgencies

    def write(self, ticket: Ticket) -> None:
        """Write caller and urgency of a ticket's rows, before the device is notified of them."""
        if not self.is_written:
            # Rows that the device already has were queued without them.
            self._columns[:] = (0, 1, DEFAULT_URGENCY.placed)
            self._flag[0] = self.is_written = True
        urgency = ticket.urgency or DEFAULT_URGENCY
        self._columns[ticket.row_numbers] = (ticket.target_ns, ticket.rows, urgency.placed)
        if urgency.caller.number:
            self.has_callers = True

    def exceeds_share(self, ticket: Ticket, free: Sequence[int]) -> bool:
        """Whether a ticket's caller holds at least twice as many rows as are free, where there are several callers.

        So a third of the rows remains for others, and a caller that arrives during another one's flood finds some.
        """
        capacity = len(self._columns)
        if len(free) * (_FREE_RATIO + 1) >= capacity:
            return False
        if abs(len(free) - self._counted_free) * _RECOUNT_SHARE >= capacity:
            taken = np.ones(capacity, bool)
            taken[np.array(free, np.int64)] = False
            self._held = np.bincount(self._columns[taken, _CALLER_COLUMN] & CALLER_MASK)
            self._counted_free = len(free)
        caller = (ticket.urgency or DEFAULT_URGENCY).caller.number
        return caller < len(self._held) and int(self._held[caller]) >= _FREE_RATIO * len(free)
