"""The end of a server: on a signal, or because another server takes over."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import time
from typing import Final

from stoker.control.frontend_messages import Drain, Stop
from stoker.settings.server import ServerSettings
from stoker.supervisor.background import Background
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.handover import Handover

logger = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 5.0
_DRAIN_TIMEOUT_S: Final = 30.0
_INTERRUPT_GRACE_S: Final = 0.2
_SAME_SIGNAL_S: Final = 0.25
"""Wrappers such as timeout(1) send one request to stop twice: to the process, and to its group."""


class Shutdown:
    """Decides when a server stops, and drains it.

    Attributes:
        is_announced: Whether the operator knows that the server serves: only then callers get time to finish.
    """

    def __init__(
        self,
        settings: ServerSettings,
        fleet: Fleet,
        catalogue: Catalogue,
        handover: Handover,
        background: Background,
    ) -> None:
        self._settings, self._fleet, self._catalogue = settings, fleet, catalogue
        self._handover, self._background = handover, background
        self.is_announced = self._port_stays = False
        self._grace_s = self._signalled_s = 0.0

    def follow_signals(self) -> None:
        """Stop on SIGTERM and SIGINT, and if the predecessor of this server wants its sockets back or has ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, signal.SIGTERM, self._settings.drain_grace_s)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, signal.SIGINT, _INTERRUPT_GRACE_S)
        if self._handover.predecessor is not None:
            gone = functools.partial(self._on_signal, signal.SIGTERM, self._settings.drain_grace_s)
            self._handover.predecessor.watch(self.leave, gone)

    def _on_signal(self, number: signal.Signals, grace_s: float) -> None:
        now_s = time.monotonic()
        if self._background.stopping and now_s - self._signalled_s < _SAME_SIGNAL_S:
            return
        first, self._signalled_s = not self._signalled_s, now_s
        if first and self._handover.successor is not None:
            # The signal is for the child that serves; this process is stopping already, and ends when the child
            # does.
            self._handover.successor.send_signal(number)
            return
        if self._background.stopping:
            logger.warning("asked to stop a second time: ending at once")
            for child in self._fleet.children:
                child.kill()
            os._exit(1)
        self._grace_s = grace_s if self.is_announced else 0.0
        self._handover.end(number)
        self._background.stop()

    def leave(self) -> None:
        """Leave the sockets to another server from now on."""
        self._port_stays = True
        self._grace_s = self._settings.drain_grace_s
        self._background.stop()

    async def drain(self) -> None:
        """Drain: readiness off, requests are answered for a grace period, then the port closes and the rest ends.

        Where another server keeps the port open, readiness stays on, and new connections go to that server.
        """
        frontends = self._fleet.frontends
        children = frontends.children
        frontends.tell(Drain(self._port_stays))
        await asyncio.sleep(self._grace_s)
        frontends.close_sockets()
        timeouts_ms = [model.timeout_ms for model in self._catalogue.served]
        timeouts_ms += [one.timeout_ms or self._settings.timeout_ms for one in self._settings.pipelines]
        longest_s = max(timeouts_ms, default=0) / 1000
        timeout_s = min(_DRAIN_TIMEOUT_S, longest_s)
        frontends.tell(Stop(timeout_s))
        waits = [asyncio.ensure_future(child.process.wait()) for child in children]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s + _END_TIMEOUT_S)
