"""The leased and the free rows of an arena, and the request that holds each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.arena import Arena
    from stoker.gateway.rows.ticket import Ticket


class RowLeases:
    """The leased and the free rows of one arena.

    Attributes:
        free: The free rows. The last one is leased first, so that few rows are touched under low load.
        tickets: By row the request that holds it.
    """

    __slots__ = ("capacity", "free", "tickets")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = list(range(capacity - 1, -1, -1))
        self.tickets: list[Ticket | None] = [None] * capacity

    @property
    def leased_rows(self) -> int:
        """Rows that requests hold now."""
        return self.capacity - len(self.free)

    def take(self, count: int) -> list[int]:
        """Take this many free rows for a request that is not recorded yet; there must be enough."""
        numbers = self.free[-count:]
        del self.free[-count:]
        return numbers

    def record(self, ticket: Ticket) -> None:
        """Record that a request holds its rows."""
        for number in ticket.row_numbers:
            self.tickets[number] = ticket

    def release(self, numbers: list[int]) -> None:
        """Free rows of a request."""
        for number in numbers:
            self.tickets[number] = None
        self.free += numbers

    def forget_tickets(self) -> None:
        """Forget which request holds each row; the rows stay leased."""
        self.tickets = [None] * self.capacity


_EXAMINED: Final = 4


def done_since(arena: Arena, free: Sequence[int], since_ns: int, most: int) -> list[int]:
    """Free rows whose last request was answered after a given time, in the order in which they were freed.

    Until another request leases it, a free row still holds its inputs and outputs. Left out are rows of long
    variable data, whose memory has been returned, and rows into which a body was decoded but not queued.

    Args:
        most: How many rows at most; four times as many free rows are examined.
    """
    latest = free[: -_EXAMINED * most - 1 : -1]
    found = [
        number for number in latest if arena.finished_ns[number] > since_ns and not arena.outcome[number]
    ]
    return [number for number in found[:most] if arena.keeps(number)]
