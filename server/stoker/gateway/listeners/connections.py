"""Which frontend serves a new connection: this one, another one, or none for lack of file descriptors.

The kernel spreads connections over the sockets of one port (SO_REUSEPORT) by a hash of their addresses. With few
connections that is uneven: of eight frontends and 16 connections the busiest has about twice its share, and some have
none. A connection that has just been accepted, and of which nothing has been read, can still go elsewhere: its
descriptor is sent to the frontend that has the fewest (SCM_RIGHTS, unix(7)).

Out of descriptors, libuv accepts connections only to close them, and reports nothing. So a frontend keeps some
descriptors for itself, enough for arenas of device processes that come back, and for files.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import math
import os
import resource
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from stoker.control.handed_connections import receive_connection, send_connection
from stoker.metrics.memory import MetricPage

__all__ = [
    "HANDSHAKE_S",
    "ConnectionShare",
    "Descriptors",
    "Entrance",
    "Siblings",
    "allow_many",
    "drop_new_connections",
    "fewest",
]

logger = logging.getLogger(__name__)

_KEPT: Final = 64
_KEPT_SHARE: Final = 8
_LOG_EVERY_S: Final = 60.0


class Descriptors:
    """What a frontend may open."""

    def __init__(self, count: Callable[[], None], clock_s: Callable[[], float] = time.monotonic) -> None:
        """Look at the limit.

        Args:
            count: Called for each connection that is not served.
        """
        self._count = count
        self._clock_s = clock_s
        self._limit = self._most = 0
        self._unsaid = 0
        self._said_s = -math.inf
        self.look()

    def fits(self, descriptor: int) -> bool:
        """Whether a new connection with this descriptor can be served."""
        return descriptor < self._most

    def is_last(self, descriptor: int) -> bool:
        """Whether there is no room for a further connection beside the newest one, which has this descriptor."""
        # The kernel gives the lowest that is free.
        return descriptor >= self._most - 1

    def refuse(self) -> None:
        """Count a connection that is closed unserved, and say so."""
        self._count()
        self._unsaid += 1
        self._say()

    def look(self) -> bool:
        """Read the limit again; return whether a new connection would fit. Call this once a second.

        Where no descriptor is left at all, connections are closed by the event loop: that is counted as one for each
        look.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = (1 << 62) if soft == resource.RLIM_INFINITY else soft
        self._most = self._limit - min(_KEPT, self._limit // _KEPT_SHARE)
        fits = True
        try:
            lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                fits = False
                self.refuse()
        else:
            os.close(lowest_free)
            fits = self.fits(lowest_free)
        self._say()
        return fits

    def _say(self) -> None:
        now_s = self._clock_s()
        if not self._unsaid or now_s - self._said_s < _LOG_EVERY_S:
            return
        logger.error(
            "out of file descriptors: connections that were closed unserved: %d; this frontend may open %d files, "
            "raise the hard limit (ulimit -Hn) or serve with more frontends",
            self._unsaid,
            self._limit,
        )
        self._said_s, self._unsaid = now_s, 0


def allow_many() -> None:
    """Let this process have as many descriptors open as it may: each connection is one, and so is each arena.

    Device processes keep the limit that the server was started with: scripts may use `select`, which takes only 1024.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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


class Entrance:
    """Decides where each new connection of one protocol is served; belongs to the event loop of its frontend."""

    def __init__(self, count_refused: Callable[[], None] = lambda: None) -> None:
        """Serve all connections in this frontend, until `join`.

        Args:
            count_refused: Called for each connection that is closed unserved for lack of descriptors.
        """
        self._descriptors = Descriptors(count_refused)
        self._share: ConnectionShare | None = None

    def join(
        self, siblings: Siblings, protocol: str, take: Callable[[socket.socket], Awaitable[object]]
    ) -> None:
        """Share connections with the other frontends from now on.

        Args:
            protocol: What is spoken on them, of `stoker.metrics.layout.PROTOCOLS`.
            take: Called with each connection that another frontend has handed on; owns it.
        """
        self._share = siblings.share(protocol, take, lost=self._descriptors.refuse)

    def leave(self) -> None:
        """Neither hand connections on nor take those of others any more; what is under way is still taken."""
        if self._share is not None:
            self._share.leave()

    def tell(self, count: int) -> None:
        """Tell the other frontends how many connections are open here."""
        if self._share is not None:
            self._share.tell(count)

    def admits(self, descriptor: int, *, handed_on: bool = False) -> bool:
        """Whether a new connection is served here; if not, the caller closes its socket.

        Args:
            handed_on: Whether it stays here if there is room: another frontend has handed it on, or nobody else takes
                connections any more.
        """
        share, fits = self._share, self._descriptors.fits(descriptor)
        if share is not None:
            if not fits:
                # Said before anything else: a full frontend has few connections, and would be given those of others.
                share.fill()
            if not (handed_on and fits) and share.hand_on(descriptor):
                return False
            if self._descriptors.is_last(descriptor):
                # Only of one that stays: the descriptor of one that was handed on is free again.
                share.fill()
        if not fits:
            self._descriptors.refuse()
        return fits

    def look(self) -> None:
        """See whether there is room again; call this once a second."""
        if self._descriptors.look() and self._share is not None:
            self._share.reopen()


HANDSHAKE_S: Final = 0.05
"""How long a handshake that has begun may take to complete."""
_SO_ATTACH_FILTER: Final = 26
# Classic BPF on the TCP header: drop what has SYN without ACK in its flags (byte 13), take everything else.
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


def drop_new_connections(sock: socket.socket) -> None:
    """Let the kernel drop new handshakes on a listening socket.

    Otherwise the kernel would complete handshakes between the last `accept` and the close of the socket, and then
    reset these connections. A client whose SYN is dropped sends it again after a second, and is refused before it
    has sent a request.
    """
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(buffer))
    # Where socket filters are not allowed, a few connections may be reset.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
