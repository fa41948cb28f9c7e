"""The watch over connections on which nothing moves."""

from __future__ import annotations

from typing import Any, Final, Protocol

KEEP_ALIVE_S: Final = 75
_ARRIVAL_TIMEOUT_S: Final = 10
# A body may take longer than this only if it arrives at this rate: a dripping one would last for ever.
_SLOWEST_BYTES_S: Final = 1024
_LONGEST_ARRIVAL_S: Final = 900


class WatchedConnection(Protocol):
    """A connection as the watch needs it; see `BoundedProtocol`."""

    idle_sweeps: int
    arrived_bytes: int
    transport: Any
    flow: Any

    @property
    def busy(self) -> bool:
        """Whether a request that has arrived is unanswered."""

    @property
    def arriving(self) -> bool:
        """Whether a request is still arriving."""

    @property
    def unacknowledged_bytes(self) -> int:
        """How much of its answers has not been taken from this process."""

    def idle_limit_s(self, keep_alive_s: int) -> int:
        """Return how many idle seconds are too many, given the limit for keep-alive."""

    def time_out(self) -> None:
        """Close the connection."""


class IdleWatch:
    """Ends one connection when nothing has moved on it for too long; a sweep of the listener is a second.

    Attributes:
        arriving_sweeps: In how many sweeps the same request was still arriving while the server was reading it.
        unread_bytes: How many bytes of its answers the client had not taken at the last sweep.
    """

    __slots__ = ("arriving_sweeps", "unread_bytes")

    def __init__(self) -> None:
        self.arriving_sweeps = 0
        self.unread_bytes = 0

    def check(self, connection: WatchedConnection, unread_s: int) -> None:
        """End the connection if it is idle, sends too slowly, or has read nothing for `unread_s`."""
        before, self.unread_bytes = self.unread_bytes, connection.unacknowledged_bytes
        if connection.busy or self.unread_bytes < before:
            connection.idle_sweeps = 0
            return
        connection.idle_sweeps += 1
        if self.unread_bytes:
            # Closing it would wait until the client has read all.
            if connection.idle_sweeps > unread_s:
                connection.transport.abort()
        elif connection.idle_sweeps > (
            _ARRIVAL_TIMEOUT_S if connection.arriving else connection.idle_limit_s(KEEP_ALIVE_S)
        ):
            connection.time_out()
        elif connection.arriving and not connection.flow.read_paused:
            # If reading is paused, the server is slow, not the client.
            self.arriving_sweeps += 1
            patience_s = _ARRIVAL_TIMEOUT_S + connection.arrived_bytes // _SLOWEST_BYTES_S
            if self.arriving_sweeps > min(patience_s, _LONGEST_ARRIVAL_S):
                connection.time_out()
