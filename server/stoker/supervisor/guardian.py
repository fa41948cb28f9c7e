"""The first server after it was replaced: it keeps its process id, and passes signals on (decision 24)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Final

from stoker.control.handover_messages import Labels
from stoker.errors import StokerError
from stoker.supervisor.successor import Successor

_ENDED_BY_SIGNAL: Final = 128


class Guardian:
    """Passes signals on to the present server, and starts its successors."""

    def __init__(self, serving: Successor) -> None:
        self._serving = serving
        self._replacing: asyncio.Task[None] | None = None
        self._coming: Successor | None = None
        """The server that is being started to take the place of the one that serves."""
        self._ended_by: signal.Signals | None = None
        self._leaving: set[asyncio.Task[int]] = set()

    async def run(self) -> int:
        """Wait until the present server ends, and return its exit code as a shell would."""
        loop = asyncio.get_running_loop()
        # Also the signal for a reload: the present server then asks for a successor, with what that needs.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            loop.add_signal_handler(number, self._pass_on, number)
        while True:
            serving = self._serving
            serving.on_reload = self._reload
            if serving.wanted is not None:
                self._reload(serving.wanted.labels)
            await serving.ended
            if serving is self._serving:
                break
        if self._replacing is not None:
            self._replacing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replacing
        if self._leaving:
            await asyncio.wait(self._leaving)
        code = serving.ended.result()
        return code if code >= 0 else _ENDED_BY_SIGNAL - code

    def _pass_on(self, number: signal.Signals) -> None:
        self._serving.send_signal(number)
        if number is not signal.SIGUSR2:
            # While the one that serves ends, nobody is to take its place.
            self._ended_by = number
            if self._coming is not None:
                self._coming.send_signal(number)

    def _reload(self, labels: Labels) -> None:
        if self._replacing is None:
            self._replacing = asyncio.get_running_loop().create_task(self._replace(labels))

    async def _replace(self, labels: Labels) -> None:
        old = self._serving
        try:
            successor = self._coming = await Successor.start(old.sockets, labels)
            if self._ended_by is not None:
                successor.send_signal(self._ended_by)
            await successor.ready()
        except (StokerError, OSError) as error:
            old.refuse(str(error))
        else:
            for sock in old.sockets:
                sock.close()
            self._serving = successor
            self._leaving.add(old.ended)
            old.ended.add_done_callback(self._leaving.discard)
            old.leave()
        finally:
            self._replacing = self._coming = None
