"""What rows of an arena say of their urgency: written from the first request on that has something to say."""

from __future__ import annotations

from typing import Final

from stoker.arena import Arena
from stoker.gateway.rows.ticket import Ticket
from stoker.gateway.rows.urgency import USUAL

__all__ = ["Telling"]

_FIRST: Final = 3
"""The first column of what is said of it."""


class Telling:
    """The frontend's side of the columns of one arena that say whose rows are, and how urgent.

    Attributes:
        begun: Whether they are written; then they are for each request.
    """

    __slots__ = ("_columns", "_told", "begun")

    def __init__(self, arena: Arena) -> None:
        self.begun = False
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
