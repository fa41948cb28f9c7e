"""Connections of a frontend: uvicorn's protocol on listening sockets, with a drain that loses no request."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from starlette.types import ASGIApp
from uvicorn.config import Config

from stoker.gateway.gateway import Gateway
from stoker.gateway.listeners.acceptor import Acceptor, Peers
from stoker.gateway.listeners.answer_headers import HttpState
from stoker.gateway.listeners.app_throttle import AppThrottle
from stoker.gateway.listeners.connection_ages import ConnectionAges
from stoker.gateway.listeners.direct import DirectProtocol
from stoker.gateway.listeners.handshakes import HANDSHAKE_S, drop_new_handshakes
from stoker.gateway.listeners.idle_watch import KEEP_ALIVE_S
from stoker.gateway.listeners.tls import TlsListener
from stoker.gateway.listeners.tls_protocol import TlsProtocol
from stoker.gateway.scoring.service import Service

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
