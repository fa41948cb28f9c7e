"""The handover of a server from its predecessor, and to its successor (decision 24)."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Sequence

from stoker.control.handover_messages import Labels
from stoker.errors import NotReady, ReloadFailed
from stoker.supervisor.predecessor import Predecessor
from stoker.supervisor.successor import Successor

logger = logging.getLogger(__name__)


class Handover:
    """The predecessor and the successor of a server, and the start of the latter."""

    def __init__(self, sockets: Sequence[socket.socket], predecessor: Predecessor | None = None) -> None:
        self.predecessor = predecessor
        self.successor: Successor | None = None
        self._sockets = sockets
        self._starting = False
        self._coming: Successor | None = None
        self._ended_by: signal.Signals | None = None

    def report_ready(self) -> None:
        """Tell the predecessor that this server serves."""
        if self.predecessor is not None:
            self.predecessor.report_ready(self._sockets)

    async def hand_over(self, labels: Labels) -> None:
        """Start a successor, or have the predecessor start it; returns when it serves.

        Raises:
            ReloadFailed: It did not start.
            NotReady: Another one is being started.
        """
        if self._starting:
            raise NotReady("The server is being replaced already.")
        self._starting = True
        try:
            if self.predecessor is not None:
                await self.predecessor.reload(labels)
                return
            logger.info("a new server starts, to take the place of this one")
            successor = self._coming = await Successor.start(self._sockets, labels)
            if self._ended_by is not None:
                successor.send_signal(self._ended_by)
            await successor.ready()
            self.successor = successor
        except OSError as error:
            raise ReloadFailed(
                f"The new server cannot be started, and the old one goes on: {error}"
            ) from error
        finally:
            self._starting, self._coming = False, None

    def end(self, number: signal.Signals) -> None:
        """End a successor that is being started too, because a signal ends this server."""
        self._ended_by = number
        if self._coming is not None:
            self._coming.send_signal(number)
