"""A server that is to replace the running one (decision 24)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import assert_never

from stoker.control.channel import ControlChannel
from stoker.control.handover_messages import (
    HANDOVER_VARIABLE,
    PREDECESSOR_END,
    FromSuccessor,
    Labels,
    Leave,
    NotReloaded,
    NotStarted,
    Reload,
    Sockets,
    ToSuccessor,
    open_sockets,
    send_sockets,
)
from stoker.errors import ReloadFailed


class Successor:
    """A server that is to replace the running one; its process is a child of this one."""

    def __init__(
        self, process: asyncio.subprocess.Process, channel: ControlChannel[ToSuccessor, FromSuccessor]
    ) -> None:
        self._process = process
        self._channel = channel
        self.sockets: list[socket.socket] = []
        """Its sockets, once it serves."""
        self._error = ""
        self._was_signalled = False
        loop = asyncio.get_running_loop()
        self._serves = asyncio.Event()
        self.on_reload: Callable[[Labels], object] = lambda _: None
        """Called with its labels when it asks for a successor itself."""
        self.wanted: Reload | None = None
        """Labels of a request for a successor that has not been answered, perhaps sent before `on_reload` was set."""
        self.ended = loop.create_task(process.wait())
        """A future of its exit code."""
        loop.add_reader(channel.fileno(), self._read)

    @classmethod
    async def start(cls, sockets: Sequence[socket.socket], labels: Labels) -> Successor:
        """Start a server with the same command and in the same folder as this one.

        Raises:
            OSError: The system has no resources for another process.
        """
        channel, far = ControlChannel.pair(PREDECESSOR_END)
        with far:
            process = await asyncio.create_subprocess_exec(
                *sys.orig_argv,
                pass_fds=(far.fileno(),),
                env={**os.environ, HANDOVER_VARIABLE: str(far.fileno())},
            )
        channel.send(labels)
        send_sockets(channel.send, sockets)
        return cls(process, channel)

    async def ready(self) -> None:
        """Wait until it serves.

        Raises:
            ReloadFailed: It did not start.
        """
        serves = asyncio.ensure_future(self._serves.wait())
        try:
            await asyncio.wait((serves, self.ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not self._was_signalled:
                # A second signal would end it at once.
                self.send_signal(signal.SIGTERM)
            raise
        finally:
            serves.cancel()
        if not self._serves.is_set():
            reason = self._error or f"it ended with code {self.ended.result()}"
            raise ReloadFailed(f"The new server did not start, and the old one goes on: {reason}")

    def leave(self) -> None:
        """Let it answer its last requests and end, because another server serves on its sockets."""
        self._channel.send(Leave())

    def refuse(self, error: str) -> None:
        """Tell it that the successor that it asked for did not start."""
        self.wanted = None
        self._channel.send(NotReloaded(error))

    def send_signal(self, number: signal.Signals) -> None:
        """Send its process a signal, if it has not ended."""
        self._was_signalled |= number is not signal.SIGUSR2
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _read(self) -> None:
        received = self._channel.receive()
        if received is None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            return
        message, fds = received
        match message:
            case Sockets(last):
                self.sockets += open_sockets(fds)
                if last:
                    self._serves.set()
            case NotStarted(error):
                self._error = error
            case Reload(labels):
                self.wanted = message
                self.on_reload(labels)
            case _:
                assert_never(message)
