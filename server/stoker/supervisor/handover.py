"""Handing a server's listening sockets over to a successor, and back: both ends of the channel between them.

The sockets stay open all the time, so no waiting connection is lost, whichever server accepts it.

See decision 24.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Final, assert_never

from stoker.control.channel import ControlChannel
from stoker.control.handover_messages import (
    PREDECESSOR_END,
    SUCCESSOR_END,
    FromSuccessor,
    Labels,
    Leave,
    NotReloaded,
    NotStarted,
    Reload,
    Sockets,
    ToSuccessor,
)
from stoker.errors import NotReady, ReloadFailed, StokerError

logger = logging.getLogger(__name__)


_VARIABLE: Final = "STOKER_HANDOVER_FD"
_SOCKETS_A_MESSAGE: Final = 8


def _hand_over(send: Callable[[Sockets, Sequence[int]], object], sockets: Sequence[socket.socket]) -> None:
    for first in range(0, len(sockets), _SOCKETS_A_MESSAGE):
        some = sockets[first : first + _SOCKETS_A_MESSAGE]
        send(Sockets(last=first + len(some) == len(sockets)), [sock.fileno() for sock in some])


def _opened(fds: Sequence[int]) -> list[socket.socket]:
    return [socket.socket(fileno=fd) for fd in fds]


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
            self.sockets += _opened(fds)
            if isinstance(message, Labels):
                self.labels = message
            if isinstance(message, Sockets) and message.last:
                break
        os.set_blocking(channel.fileno(), False)

    @classmethod
    def find(cls, environ: MutableMapping[str, str]) -> Predecessor | None:
        """The predecessor of this process, if it has one; processes that this one starts do not inherit it."""
        fd = environ.pop(_VARIABLE, None)
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
        _hand_over(self._channel.send, sockets)

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
        self._asked_to_end = False
        loop = asyncio.get_running_loop()
        self._serves = asyncio.Event()
        self.on_reload: Callable[[Labels], object] = lambda _: None
        """Called with its labels when it asks for a successor itself."""
        self.wanted: Reload | None = None
        """Labels of a request for a successor that has not been answered, perhaps sent before anybody listened."""
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
                env={**os.environ, _VARIABLE: str(far.fileno())},
            )
        channel.send(labels)
        _hand_over(channel.send, sockets)
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
            if not self._asked_to_end:
                # Who is asked a second time ends at once.
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
        self._asked_to_end |= number is not signal.SIGUSR2
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
                self.sockets += _opened(fds)
                if last:
                    self._serves.set()
            case NotStarted(error):
                self._error = error
            case Reload(labels):
                self.wanted = message
                self.on_reload(labels)
            case _:
                assert_never(message)


class Succession:
    """The predecessor and the successor of a server."""

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
        """Let nobody take the place of this server, which has been asked to end by a signal."""
        self._ended_by = number
        if self._coming is not None:
            self._coming.send_signal(number)


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
