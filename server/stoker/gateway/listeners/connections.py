"""The choice of the frontend for a new connection: this one, another, or none for lack of descriptors (decision 35).

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

from stoker.control.channel import receive_connection, send_connection
from stoker.metrics.memory import MetricPage

logger = logging.getLogger(__name__)

_KEPT: Final = 64
_KEPT_SHARE: Final = 8
_LOG_EVERY_S: Final = 60.0
_TOLERATED: Final = 8
"""A frontend may have an eighth more than another: handing over takes longer than accepting."""

# The fractional parts of its multiples fill the space between 0 and 1 evenly.
_GOLDEN: Final = (5**0.5 - 1) / 2
HANDSHAKE_S: Final = 0.05
"""How long a handshake that has begun may take to complete."""
_SO_ATTACH_FILTER: Final = 26
# Classic BPF on the TCP header: drop what has SYN without ACK in its flags (byte 13), accept everything else.
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


class Descriptors:
    """The file descriptors that a frontend may open."""

    def __init__(self, count: Callable[[], None], clock_s: Callable[[], float] = time.monotonic) -> None:
        """Read the limit; `count` is called for each connection that is not served."""
        self._count = count
        self._clock_s = clock_s
        self._limit = self._most = 0
        self._unlogged = 0
        self._logged_s = -math.inf
        self.check()

    def fits(self, descriptor: int) -> bool:
        """Whether a new connection with this descriptor can be served."""
        return descriptor < self._most

    def is_last(self, descriptor: int) -> bool:
        """Whether there is no room for a further connection beside the newest one, which has this descriptor."""
        # The kernel gives the lowest that is free.
        return descriptor >= self._most - 1

    def refuse(self) -> None:
        """Count and log a connection that is closed unserved."""
        self._count()
        self._unlogged += 1
        self._log()

    def check(self) -> bool:
        """Read the limit again; return whether a new connection would fit. Call this once a second.

        If no descriptor is left at all, the event loop closes connections: each check counts as one of them.
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
        self._log()
        return fits

    def _log(self) -> None:
        now_s = self._clock_s()
        if not self._unlogged or now_s - self._logged_s < _LOG_EVERY_S:
            return
        logger.error(
            "out of file descriptors: connections that were closed unserved: %d; this frontend may open %d files, "
            "raise the hard limit (ulimit -Hn) or serve with more frontends",
            self._unlogged,
            self._limit,
        )
        self._logged_s = now_s
        self._unlogged = 0


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as it may: each connection is one, and so is each arena.

    Device processes keep the limit that the server was started with: scripts may use `select`, which takes only 1024.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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


class ConnectionAges:
    """Spreads the ends of connections: those that were made together, or one after the other, do not end together.

    Args:
        age_s: The maximum age of connections; 0 for any age.
        youngest: The least share of it at which connections end; others end as much above it.
    """

    def __init__(self, age_s: float, youngest: float) -> None:
        self._age_s, self._youngest = age_s, youngest
        self._made = 0

    def end_s(self, now_s: float) -> float:
        """Return when a connection that is made now has to end."""
        if not self._age_s:
            return math.inf
        self._made += 1
        return now_s + self._age_s * (self._youngest + (1 - self._youngest) * 2 * (self._made * _GOLDEN % 1))


def drop_new_handshakes(sock: socket.socket) -> None:
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
