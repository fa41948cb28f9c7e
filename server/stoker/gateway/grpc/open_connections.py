"""The open connections of gRPC, and their end when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from stoker.gateway.grpc.connection_monitor import ConnectionMonitor, Timeouts
from stoker.gateway.listeners.connection_ages import ConnectionAges

if TYPE_CHECKING:
    from stoker.gateway.grpc.connection import GrpcConnection

_SETTLED_S: Final = 5.0
"""How long the server waits for a peer to acknowledge the GOAWAY when it stops."""
_UNREAD_S: Final = 75.0
_YOUNGEST: Final = 0.9

_HANDSHAKE_MS: Final = 10_000
"""A connection that does not speak HTTP/2 by then is closed."""
_IDLE_MS: Final = 300_000
"""A connection without a call for this time is closed; clients connect again with their next call."""
_LOOK_FOR_PEER_MS: Final = 60_000
_SILENT_PEER_MS: Final = 20_000
"""A peer that sends nothing for a minute gets a PING; one that does not answer by then has gone."""


class OpenConnections:
    """The connections of one frontend, each with its monitor."""

    def __init__(self, connection_age_s: float, report: Callable[[int], None]) -> None:
        """Begin without connections.

        Args:
            connection_age_s: Maximum age of connections, give or take a tenth; 0 for any age.
            report: Called with the number of connections when it changes.
        """
        self._monitors: dict[GrpcConnection, ConnectionMonitor] = {}
        self._ages = ConnectionAges(connection_age_s, _YOUNGEST)
        self._timeouts = Timeouts(
            _HANDSHAKE_MS / 1000, _IDLE_MS / 1000, _LOOK_FOR_PEER_MS / 1000, _SILENT_PEER_MS / 1000, _UNREAD_S
        )
        self._report = report
        self._none_left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._monitors)

    def __iter__(self) -> Iterator[GrpcConnection]:
        return iter(self._monitors)

    def add(self, connection: GrpcConnection) -> None:
        """Watch over a new connection."""
        now_s = asyncio.get_running_loop().time()
        ends_s = self._ages.end_s(now_s)
        self._monitors[connection] = ConnectionMonitor(connection, self._timeouts, now_s, ends_s)
        self._report(len(self))

    def discard(self, connection: GrpcConnection) -> None:
        """Forget a connection that has ended."""
        self._monitors.pop(connection, None)
        self._report(len(self))
        if not self._monitors:
            self._none_left.set()

    def check(self, now_s: float) -> None:
        """Check all connections and their calls; called once a second."""
        for monitor in list(self._monitors.values()):
            monitor.check(now_s)

    async def finish(self, deadline_s: float) -> int:
        """End connections as their calls are answered; return how many calls were cut off at the deadline."""
        for connection in list(self._monitors):
            connection.http.drain()
            connection.flush()
        await self._wait(min(asyncio.get_running_loop().time() + _SETTLED_S, deadline_s))
        for connection in list(self._monitors):
            connection.http.settle()
            connection.flush()
        await self._wait(deadline_s)
        cut_off = sum(connection.calls_under_way for connection in self._monitors)
        for connection in list(self._monitors):
            connection.abort()
        return cut_off

    async def _wait(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._none_left.clear()
        left_s = deadline_s - loop.time()
        if self._monitors and left_s > 0:
            waiting = asyncio.ensure_future(self._none_left.wait())
            await asyncio.wait((waiting,), timeout=left_s)
            waiting.cancel()
