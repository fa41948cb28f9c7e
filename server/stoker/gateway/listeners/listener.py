"""Connections of a frontend: uvicorn's protocol on listening sockets, with a drain that loses no request."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from starlette.types import ASGIApp
from uvicorn.config import Config

from stoker.gateway.gateway import Gateway
from stoker.gateway.listeners.answer_headers import HttpState
from stoker.gateway.listeners.app_throttle import AppThrottle
from stoker.gateway.listeners.connections import (
    HANDSHAKE_S,
    Acceptor,
    ConnectionAges,
    Peers,
    drop_new_handshakes,
)
from stoker.gateway.listeners.direct import DirectProtocol
from stoker.gateway.listeners.idle_watch import KEEP_ALIVE_S
from stoker.gateway.listeners.tls import TlsListener
from stoker.gateway.scoring.service import Service

# `struct tcp_info` of Linux (uapi/linux/tcp.h): milliseconds since something was received, and bytes acknowledged.
_LAST_RECEIVED: Final = struct.Struct("=52xI")
_ACKNOWLEDGED: Final = struct.Struct("=120xQ")
_QUIET_MS: Final = 100
"""Bytes that arrived more recently may be part of an incomplete record."""
_FAREWELL_S: Final = 0.1
"""A caller need not confirm the end of a connection on which nothing is under way."""
_FAREWELL_SWEEPS: Final = 5
_MOST: Final = 1 << 62


class TlsProtocol(DirectProtocol):
    """A connection of HTTP over TLS; it was accepted before its handshake.

    The kernel's buffers do not tell what the caller has sent or not taken: the loop reads records before they are
    complete, and hands whole records to the socket before the caller takes them.
    """

    @property
    def unacknowledged_bytes(self) -> int:
        """0 if the caller has taken all, else a number that shrinks while it takes more.

        What the loop holds for the socket is not known here; but then the socket is full.
        """
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return 0
        (unsent,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
        if not unsent and not self.transport.get_write_buffer_size():
            return 0
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
        if len(info) < _ACKNOWLEDGED.size:
            return max(1, int(unsent))
        return _MOST - int(_ACKNOWLEDGED.unpack(info)[0])

    def idle_limit_s(self, keep_alive_s: int) -> int:
        """Return how many idle seconds are too many: few, when the connection ends already."""
        return _FAREWELL_SWEEPS if self.transport.is_closing() else keep_alive_s

    def time_out(self) -> None:
        """End the connection; at once if the caller does not confirm its end."""
        if self.transport.is_closing():
            self.transport.abort()
        else:
            super().time_out()

    def close_unless_readable(self) -> None:
        """Close the connection, on which nothing happens, unless a request may be on its way."""
        transport = self.transport
        if transport.is_closing():
            return
        sock = transport.get_extra_info("socket")
        (unread_bytes,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.size)
        if unread_bytes or _LAST_RECEIVED.unpack(info)[0] < _QUIET_MS:
            return
        transport.close()
        asyncio.get_running_loop().call_later(_FAREWELL_S, transport.abort)

    def eof_received(self) -> bool:  # type: ignore[override]  # what asyncio expects; uvicorn says None
        """Refuse what is incomplete. The caller has ended TLS, so the loop ends the connection without an answer."""
        if self.receiving:
            super().eof_received()
        return False


# libuv accepts one connection from a listening socket in a turn of the loop. Under load a turn lasts tens of
# milliseconds, and new connections would wait for seconds. Each copy of the socket accepts one more.
_ACCEPTED_A_TURN: Final = 16
_CLOSED_A_TURN: Final = 16
# A client that reads nothing of its answer for so long is cut off, sooner when the server stops.
_UNREAD_S: Final = 75
_UNREAD_AT_END_S: Final = 5
# When the server stops, it waits so long for the first request of a new connection.
_FIRST_REQUEST_S: Final = 1.0
# Connections end between this share of the maximum age and as much above it.
_YOUNGEST: Final = 0.8


class _AcceptedProtocol(DirectProtocol):
    """A connection that ends here at once if there is no room for it, or if another frontend serves it."""

    acceptor: Acceptor
    handed_over = True

    def connection_made(self, transport: Any) -> None:
        if not self.acceptor.accepts(
            transport.get_extra_info("socket").fileno(), handed_over=self.handed_over
        ):
            # It has no request here, and no sweep would end it.
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
            return
        super().connection_made(transport)


class _Open(set[DirectProtocol]):
    """The open connections; uvicorn's protocols add and discard themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.none_left = asyncio.Event()
        self.report: Callable[[int], None] = lambda _: None

    def add(self, connection: DirectProtocol) -> None:
        super().add(connection)
        self.report(len(self))

    def discard(self, connection: object) -> None:
        super().discard(connection)
        self.report(len(self))
        if not self:
            self.none_left.set()


class Listener:
    """Accepts connections and ends them.

    uvicorn's own `Server` is not used (decision 3): its shutdown closes connections with requests under way.
    """

    def __init__(
        self,
        app: ASGIApp,
        gateway: Gateway,
        sockets: Sequence[socket.socket],
        count_refused: Callable[[], None] = lambda: None,
        connection_age_s: float = 0.0,
        peers: Peers | None = None,
        tls: TlsListener | None = None,
    ) -> None:
        """Begin without connections; `start` begins to accept.

        Args:
            connection_age_s: Maximum age of connections, give or take a fifth; 0 for any age.
        """
        self._gateway = gateway
        self._acceptor = Acceptor(count_refused)
        self._sockets = sockets
        self._config = Config(
            app,
            http=DirectProtocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._open = _Open()
        self._state = HttpState(gateway)
        self._state.connections = self._open  # type: ignore[assignment]  # all are made by _protocol
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._throttle = AppThrottle()
        self._unread_s = _UNREAD_S
        self._ages = ConnectionAges(connection_age_s, _YOUNGEST)
        self._peers = peers
        self._tls = tls

    @property
    def connections(self) -> set[DirectProtocol]:
        """The open connections."""
        return self._open

    def receives_for(self, service: Service) -> bool:
        """Whether the body of a plain request is arriving, of which the service does not know yet."""
        return any(connection.receives_for(service) for connection in self.connections)

    def _new_protocol(self) -> DirectProtocol:
        protocol = self._protocol()
        protocol.handed_over = False
        return protocol

    def _protocol(self) -> _AcceptedProtocol:
        protocol = _AcceptedProtocol(self._config, self._state, {}, gateway=self._gateway)
        protocol.acceptor = self._acceptor
        protocol.throttle = self._throttle
        protocol.retires_s = self._ages.end_s(asyncio.get_running_loop().time())
        return protocol

    def _tls_protocol(self) -> TlsProtocol:
        protocol = TlsProtocol(self._config, self._state, {}, gateway=self._gateway)
        protocol.throttle = self._throttle
        protocol.retires_s = self._ages.end_s(asyncio.get_running_loop().time())
        return protocol

    async def start(self) -> None:
        """Begin to accept."""
        self._state.refresh(self._gateway)
        loop = asyncio.get_running_loop()
        if self._peers is not None:
            self._acceptor.join(self._peers, "http", self._serve)
            self._open.report = self._acceptor.report
        if self._tls is not None:
            self._start_tls(self._tls)
        for sock in [] if self._tls is not None else self._sockets:
            # Copies, because a server closes its socket before the last connections have been accepted from it.
            for _ in range(_ACCEPTED_A_TURN):
                self._servers.append(
                    await loop.create_server(self._new_protocol, sock=_copy(sock), backlog=2048)
                )
        self._ticker = loop.call_later(1, self._tick)

    def _start_tls(self, tls: TlsListener) -> None:
        def report(_: int = 0) -> None:
            # Handshakes under way count, or all connections of a burst would stay here.
            self._acceptor.report(len(self._open) + tls.pending)

        self._open.report = report
        tls.start(self._tls_protocol, self._acceptor, report)
        for sock in self._sockets:
            tls.listen(_copy(sock))

    def _tick(self) -> None:
        # First, so that whatever fails below is tried again.
        self._ticker = asyncio.get_running_loop().call_later(1, self._tick)
        self._state.refresh(self._gateway)
        self._acceptor.check_room()
        if self._tls is not None:
            self._tls.check_certificate()
        self.sweep()

    def sweep(self) -> None:
        """End the connections on which nothing has moved for too long; called once a second."""
        now_s = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            connection.watch.check(connection, self._unread_s)
            if now_s >= connection.retires_s and not connection.old:
                connection.retire()

    def leave_port(self) -> None:
        """Stop accepting; others that listen on the same sockets accept the connections that wait."""
        self._acceptor.leave()
        self._close_servers()
        for sock in self._sockets:
            sock.close()
        self._servers.clear()

    async def stop_listening(self) -> None:
        """Stop accepting, but serve every connection that the kernel has accepted already."""
        if not (self._servers or (self._tls and self._tls.listening)):
            # It has never listened, or has left the port: others listen on these sockets, and must not be shut off.
            return
        self._acceptor.leave()
        for sock in self._sockets:
            drop_new_handshakes(sock)
        await asyncio.sleep(HANDSHAKE_S)
        self._close_servers()
        for sock in self._sockets:
            sock.setblocking(False)
            while True:
                try:
                    connection, _ = sock.accept()
                except OSError:
                    break
                if self._tls is not None:
                    self._tls.begin(connection)
                else:
                    await self._serve(connection)
            sock.close()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        if self._tls is not None:
            self._tls.close()

    async def _serve(self, connection: socket.socket) -> None:
        if self._tls is not None:
            await self._tls.serve(connection)
            return
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    async def finish(self, timeout_s: float) -> int:
        """Close connections as they become idle; return how many were still busy after `timeout_s`."""
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s
        if self._tls is not None:
            await self._tls.wait_for_handshakes(min(_FIRST_REQUEST_S, timeout_s))
        patience = now() + _FIRST_REQUEST_S
        self._unread_s = _UNREAD_AT_END_S
        while self.connections and now() < deadline:
            await self._close_idle(now() < patience)
            self._open.none_left.clear()
            if self.connections:
                # Their answers close them. Connections without a request are checked again.
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._open.none_left.wait(), min(_FIRST_REQUEST_S, deadline - now())
                    )
        if self._ticker is not None:
            self._ticker.cancel()
        return len(self.connections)

    async def _close_idle(self, patient: bool) -> None:
        """Close idle connections; if `patient`, not those on which nothing has come yet."""
        for number, connection in enumerate(list(self.connections)):
            if number % _CLOSED_A_TURN == _CLOSED_A_TURN - 1:
                # Read what has arrived meanwhile.
                await asyncio.sleep(0)
            if connection.unacknowledged_bytes:
                # Its answer is not complete; `sweep` ends it if the caller reads nothing.
                continue
            if not (connection.busy or connection.receiving or (connection.fresh and patient)):
                connection.close_unless_readable()


def _copy(sock: socket.socket) -> socket.socket:
    """Copy a listening socket without making it block.

    `socket.dup` makes the copy blocking for a moment, and with it all copies in other processes: a predecessor that
    calls `accept` just then would wait for the next connection.
    """
    return socket.socket(fileno=os.dup(sock.fileno()))
