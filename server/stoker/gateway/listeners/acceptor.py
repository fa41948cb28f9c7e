"""The choice of the frontend for a new connection: this one, another, or none for lack of descriptors (decision 35).

The kernel spreads connections over the sockets of one port (SO_REUSEPORT) by a hash of their addresses. With few
connections that is uneven: of eight frontends and 16 connections the busiest has about twice its share, and some have
none. A connection that has just been accepted, and of which nothing has been read, can still go elsewhere: its
descriptor is sent to the frontend that has the fewest (SCM_RIGHTS, unix(7)).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from stoker.control.channel import receive_connection, send_connection
from stoker.gateway.listeners.descriptors import Descriptors
from stoker.metrics.memory import MetricPage

logger = logging.getLogger(__name__)

_TOLERATED: Final = 8
"""A frontend may have an eighth more than another: handing over takes longer than accepting."""


def choose_peer(own: int, counts: Sequence[int | None]) -> int | None:
    """Choose another frontend for a new connection; None if the frontend that has accepted it keeps it.

    Args:
        counts: The number of connections of each frontend, without the new one; None for those that accept none. If
            that is `own`, any other frontend gets it.
    """
    mine = counts[own]
    candidates = [number for number, count in enumerate(counts) if count is not None and number != own]
    if not candidates:
        return None
    # Of several, not always the first: all would hand over to the same one before it can report that it has more.
    peer = min(candidates, key=lambda number: (counts[number], (number - own) % len(counts)))
    theirs = counts[peer]
    assert theirs is not None, "those that accept none were left out"
    return peer if mine is None or mine - theirs > mine // _TOLERATED else None


class Peers:
    """The frontends of a server as one of them sees them; belongs to its event loop."""

    def __init__(
        self,
        own: int,
        pages: Sequence[MetricPage],
        own_mailbox: socket.socket,
        mailboxes: Sequence[socket.socket],
    ) -> None:
        """Hand nothing over before an acceptor joins; `mailboxes` lead to those of the frontends, by number."""
        self.own, self.pages = own, pages
        self.acceptors: dict[str, Acceptor] = {}
        self._own_mailbox, self._mailboxes = own_mailbox, mailboxes
        for sock in (own_mailbox, *mailboxes):
            sock.setblocking(False)

    def start(self) -> None:
        """Receive connections of other frontends, once all acceptors joined; a predecessor may have left some."""
        asyncio.get_running_loop().add_reader(self._own_mailbox.fileno(), self._receive)

    def send(self, to: int, protocol: str, descriptor: int) -> bool:
        """Send a connection to another frontend; False if its mailbox does not accept it."""
        try:
            send_connection(self._mailboxes[to], protocol, descriptor)
        except OSError:
            # Its mailbox is full, or there is no memory: it is not worth waiting for.
            return False
        return True

    def _receive(self) -> None:
        while True:
            try:
                protocol, descriptor = receive_connection(self._own_mailbox)
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("connections of other frontends cannot be received: %s", error)
                return
            acceptor = self.acceptors.get(protocol)
            if acceptor is not None:
                acceptor.receive(descriptor)
            elif descriptor is not None:
                os.close(descriptor)


class Acceptor:
    """Decides where each new connection of one protocol is served; belongs to the event loop of its frontend."""

    _peers: Peers | None = None
    _protocol: str
    _serve: Callable[[socket.socket], Awaitable[object]]

    def __init__(self, count_refused: Callable[[], None] = lambda: None) -> None:
        """Serve all connections here until `join`; `count_refused` counts those closed for lack of descriptors."""
        self._descriptors = Descriptors(count_refused)
        self._open = 0
        self._full = self._leaving = False
        self._arriving: set[asyncio.Task[None]] = set()

    def join(self, peers: Peers, protocol: str, serve: Callable[[socket.socket], Awaitable[object]]) -> None:
        """Share connections with other frontends from now on; `serve` owns each that another one hands over."""
        self._peers, self._protocol, self._serve = peers, protocol, serve
        peers.acceptors[protocol] = self
        self.report(0)

    def leave(self) -> None:
        """Neither hand connections over nor accept those of others any more; open ones are still served."""
        self._leaving = True
        self.report(self._open)

    def report(self, count: int) -> None:
        """Report how many connections are open here; if they are fewer than before, there is room again."""
        if count < self._open:
            self._full = False
        self._open = count
        if self._peers is not None:
            page = self._peers.pages[self._peers.own]
            page.set_connections(self._protocol, count, accepts=not (self._full or self._leaving))

    def accepts(self, descriptor: int, *, handed_over: bool = False) -> bool:
        """Whether a new connection is served here; if not, the caller closes its socket.

        Args:
            handed_over: Whether it stays here if there is room: another frontend has handed it over, or nobody else
                accepts connections any more.
        """
        fits = self._descriptors.fits(descriptor)
        if not fits:
            # Reported first: a full frontend has few connections, and would be given those of others.
            self._set_full()
        if not (handed_over and fits) and self.hand_over(descriptor):
            return False
        if not fits:
            self._descriptors.refuse()
        elif self._descriptors.is_last(descriptor):
            # Only of one that stays: the descriptor of one that was handed over is free again.
            self._set_full()
        return fits

    def hand_over(self, descriptor: int) -> bool:
        """Hand a new connection over if another frontend has fewer, or only this one is full; close it here then."""
        if self._peers is None or self._leaving:
            return False
        pages = self._peers.pages
        peer = choose_peer(self._peers.own, [page.connections(self._protocol) for page in pages])
        if peer is None:
            return False
        # Before it is sent: then its owner sets the number right.
        pages[peer].add_connections(self._protocol, 1)
        if self._peers.send(peer, self._protocol, descriptor):
            return True
        pages[peer].add_connections(self._protocol, -1)
        return False

    def receive(self, descriptor: int | None) -> None:
        """Serve a connection that another frontend has handed over; None if it was lost for lack of descriptors."""
        if descriptor is None:
            self._set_full()
            self._descriptors.refuse()
            return
        serving = self._serve_received(socket.socket(fileno=descriptor))
        task = asyncio.get_running_loop().create_task(serving)
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _serve_received(self, connection: socket.socket) -> None:
        try:
            await self._serve(connection)
        except OSError:
            # The frontend that handed it over has counted it here, and it was lost.
            self.report(self._open)

    def check_room(self) -> None:
        """Accept connections again if there are descriptors again; call this once a second."""
        if self._descriptors.check() and self._full:
            self._full = False
            self.report(self._open)

    def _set_full(self) -> None:
        self._full = True
        self.report(self._open)
