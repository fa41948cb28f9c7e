"""Connections spread evenly over the frontends of a server: who has more than the others hands a new one on.

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

from stoker.control.handed_connections import receive_connection, send_connection
from stoker.metrics.memory import MetricPage

__all__ = ["ConnectionShare", "Siblings", "fewest"]

logger = logging.getLogger(__name__)

_TOLERATED: Final = 8
"""A frontend may have an eighth more than another: handing on takes longer than accepting."""


def fewest(own: int, counts: Sequence[int | None]) -> int | None:
    """Who is to have a new connection instead of the frontend that has accepted it; None if that keeps it.

    Args:
        own: The number of the frontend that has accepted it.
        counts: How many connections each has, without that one; None for those that take none. If that is `own`, any
            other one is to have it.
    """
    has = counts[own]
    open_to = [number for number, count in enumerate(counts) if count is not None and number != own]
    if not open_to:
        return None
    # Of several, not always the first: all would hand on to the same one before it can say that it has more.
    taker = min(open_to, key=lambda number: (counts[number], (number - own) % len(counts)))
    there = counts[taker]
    assert there is not None, "those that take none were left out"
    return taker if has is None or has - there > has // _TOLERATED else None


class Siblings:
    """The frontends of a server as one of them sees them; belongs to its event loop."""

    def __init__(
        self, own: int, pages: Sequence[MetricPage], mailbox: socket.socket, doors: Sequence[socket.socket]
    ) -> None:
        """Nobody hands anything on before `share` says that it is taken.

        Args:
            own: The number of this frontend.
            pages: The pages of all, by their numbers.
            mailbox: Where connections for this one arrive.
            doors: What leads to the mailbox of each.
        """
        self.own, self.pages = own, pages
        self._mailbox, self._doors = mailbox, doors
        self._shares: dict[str, ConnectionShare] = {}
        for sock in (mailbox, *doors):
            sock.setblocking(False)

    def share(
        self,
        protocol: str,
        take: Callable[[socket.socket], Awaitable[object]],
        lost: Callable[[], None] = lambda: None,
    ) -> ConnectionShare:
        """Take connections of a kind from now on.

        Args:
            protocol: What is spoken on them, of `stoker.metrics.layout.PROTOCOLS`.
            take: Called with each that was handed on; owns it.
            lost: Called for each that was handed on and for which there was no descriptor.
        """
        self._shares[protocol] = share = ConnectionShare(self, protocol, take, lost)
        share.tell(0)
        return share

    def start(self) -> None:
        """Receive what others hand on, now that all kinds are taken; what a predecessor has left is there too."""
        asyncio.get_running_loop().add_reader(self._mailbox.fileno(), self._receive)

    def send(self, to: int, protocol: str, descriptor: int) -> bool:
        """Send a connection to another frontend; whether it is there."""
        try:
            send_connection(self._doors[to], protocol, descriptor)
        except OSError:
            # Its mailbox is full, or there is no memory: it is not worth waiting for.
            return False
        return True

    def _receive(self) -> None:
        while True:
            try:
                protocol, descriptor = receive_connection(self._mailbox)
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("connections of other frontends cannot be received: %s", error)
                return
            share = self._shares.get(protocol)
            if share is not None and descriptor is not None:
                share.welcome(socket.socket(fileno=descriptor))
            elif share is not None:
                share.lose()
            elif descriptor is not None:
                os.close(descriptor)


class ConnectionShare:
    """The connections of one kind that a frontend has of all."""

    def __init__(
        self,
        siblings: Siblings,
        protocol: str,
        take: Callable[[socket.socket], Awaitable[object]],
        lost: Callable[[], None],
    ) -> None:
        self._siblings, self._protocol, self._take, self._lost = siblings, protocol, take, lost
        self._page = siblings.pages[siblings.own]
        self._open = 0
        self._full = self._leaving = False
        self._arriving: set[asyncio.Task[None]] = set()

    def tell(self, count: int) -> None:
        """Say how many connections are open; if that is fewer than before, there is room again."""
        if count < self._open:
            self._full = False
        self._open = count
        self._page.set_connections(self._protocol, count, takes=not (self._full or self._leaving))

    def tell_again(self) -> None:
        """Say so once more: who has handed a connection on has counted it here, and it is none."""
        self.tell(self._open)

    def fill(self) -> None:
        """Say that there is no room for a further connection; those that are accepted here are handed on now."""
        self._full = True
        self.tell_again()

    def reopen(self) -> None:
        """Say that there is room again, if there was none."""
        if self._full:
            self._full = False
            self.tell_again()

    def lose(self) -> None:
        """Take note that a connection which was handed on could not be received for lack of descriptors."""
        self.fill()
        self._lost()

    def leave(self) -> None:
        """Say that no more are taken; those that are under way come nevertheless."""
        self._leaving = True
        self.tell_again()

    def hand_on(self, descriptor: int) -> bool:
        """Hand a new connection on if another frontend has fewer, or if this one is full and another is not.

        Returns:
            Whether it was handed on, and is to be closed here.
        """
        if self._leaving:
            return False
        pages, own = self._siblings.pages, self._siblings.own
        taker = fewest(own, [page.connections(self._protocol) for page in pages])
        if taker is None:
            return False
        # Before it is sent: then its owner sets the number right.
        pages[taker].add_connections(self._protocol, 1)
        if self._siblings.send(taker, self._protocol, descriptor):
            return True
        pages[taker].add_connections(self._protocol, -1)
        return False

    def welcome(self, connection: socket.socket) -> None:
        """Take a connection that another frontend has handed on."""
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._take(connection)
        except OSError:
            self.tell_again()
