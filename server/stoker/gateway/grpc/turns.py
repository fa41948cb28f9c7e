"""The turns of connections: each gets its share of the event loop, and writes once a turn."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

logger = logging.getLogger(__name__)


class TurnTaker(Protocol):
    """A connection that takes turns."""

    def flush(self) -> None:
        """Write the queued bytes."""

    def resume(self) -> bool:
        """Handle one portion of the received bytes; return whether there are more."""

    def abort(self) -> None:
        """End at once."""


class ConnectionTurns:
    """Flushes connections at the end of a turn of the loop, and resumes flooded ones in later turns."""

    def __init__(self) -> None:
        self._due: list[TurnTaker] = []
        self._resuming: deque[TurnTaker] = deque()

    def flush_soon(self, connection: TurnTaker) -> None:
        """Flush a connection at the end of this turn of the loop."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.append(connection)

    def resume_soon(self, connection: TurnTaker) -> None:
        """Resume a connection in later turns of the loop until nothing is left."""
        self._resuming.append(connection)
        if len(self._resuming) == 1:
            asyncio.get_running_loop().call_soon(self._resume_next)

    def _resume_next(self) -> None:
        # One a turn: however many connections are flooded, others wait for one portion only.
        connection = self._resuming.popleft()
        try:
            if connection.resume():
                self._resuming.append(connection)
        except Exception:
            # As the event loop does if `data_received` raises.
            logger.exception("a connection of gRPC failed; it is ended")
            connection.abort()
        if self._resuming:
            asyncio.get_running_loop().call_soon(self._resume_next)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for connection in due:
            connection.flush()
