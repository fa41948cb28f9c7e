"""The server that has started this one as its successor (decision 24)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator, MutableMapping, Sequence

from stoker.control.channel import ControlChannel
from stoker.control.handover_messages import (
    HANDOVER_VARIABLE,
    SUCCESSOR_END,
    FromSuccessor,
    Labels,
    NotReloaded,
    NotStarted,
    Reload,
    Sockets,
    ToSuccessor,
    open_sockets,
    send_sockets,
)
from stoker.errors import ReloadFailed, StokerError


class Predecessor:
    """The server that has started this one as its successor, and that keeps the process id afterwards."""

    def __init__(self, channel: ControlChannel[FromSuccessor, ToSuccessor]) -> None:
        """Receive its labels and sockets, which it sends first."""
        self._channel = channel
        self._reloading: asyncio.Future[None] | None = None
        self.sockets: list[socket.socket] = []
        self.labels = Labels({})
        while (received := channel.receive()) is not None:
            message, fds = received
            self.sockets += open_sockets(fds)
            if isinstance(message, Labels):
                self.labels = message
            if isinstance(message, Sockets) and message.last:
                break
        os.set_blocking(channel.fileno(), False)

    @classmethod
    def find(cls, environ: MutableMapping[str, str]) -> Predecessor | None:
        """The predecessor of this process, if it has one; processes that this one starts do not inherit it."""
        fd = environ.pop(HANDOVER_VARIABLE, None)
        return None if fd is None else cls(ControlChannel.inherited(int(fd), SUCCESSOR_END))

    def watch(self, on_leave: Callable[[], object], on_gone: Callable[[], object]) -> None:
        """Call `on_leave` when another server takes over, and `on_gone` when the predecessor has ended."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            received = self._channel.receive()
            reloading, self._reloading = self._reloading, None
            if received is None:
                loop.remove_reader(self._channel.fileno())
                on_gone()
                error = "The server is shutting down."
            elif isinstance(received[0], NotReloaded):
                error = received[0].error
            else:
                if reloading is not None and not reloading.done():
                    reloading.set_result(None)
                on_leave()
                return
            if reloading is not None and not reloading.done():
                reloading.set_exception(ReloadFailed(error))

        loop.add_reader(self._channel.fileno(), read)

    def report_ready(self, sockets: Sequence[socket.socket]) -> None:
        """Tell it that this server serves, and on which sockets."""
        send_sockets(self._channel.send, sockets)

    def report_not_started(self, error: str) -> None:
        """Tell it why this server ends without having served."""
        self._channel.send(NotStarted(error))

    async def reload(self, labels: Labels) -> None:
        """Ask it to start a successor of this server, which gets the labels; returns when that serves.

        Raises:
            ReloadFailed: The successor did not start.
        """
        self._reloading = asyncio.get_running_loop().create_future()
        self._channel.send(Reload(labels))
        await self._reloading


@contextlib.contextmanager
def taking_over(environ: MutableMapping[str, str]) -> Iterator[Predecessor | None]:
    """The predecessor of this process, if it has one.

    Operator errors in the context are reported to it and raised again.
    """
    predecessor = Predecessor.find(environ)
    try:
        yield predecessor
    except StokerError as error:
        if predecessor is not None:
            predecessor.report_not_started(str(error))
        raise
