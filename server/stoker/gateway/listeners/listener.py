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
from email.utils import formatdate
from typing import Any, Final

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from stoker import __version__
from stoker.gateway.gateway import Gateway
from stoker.gateway.listeners.bounded import AppTurns
from stoker.gateway.listeners.connections import HANDSHAKE_S, Entrance, Siblings, drop_new_connections
from stoker.gateway.listeners.direct import DirectProtocol
from stoker.gateway.listeners.tls import SecurePort
from stoker.gateway.scoring.service import Service
from stoker.gateway.traffic import DEPLOYMENT_HEADER

__all__ = ["Listener", "SecureProtocol"]

# HTTP over TLS: the same protocol, where the transport is not the socket.
#
# What is in the kernel is no longer what the caller has sent or not taken: there are whole records only,
# which the loop reads before they are complete, and hands over to the socket before anybody takes them.


# `struct tcp_info` of Linux (uapi/linux/tcp.h): milliseconds since something was received, and bytes acknowledged.
_LAST_RECEIVED: Final = struct.Struct("=52xI")
_ACKNOWLEDGED: Final = struct.Struct("=120xQ")
_QUIET_MS: Final = 100
"""What has arrived so recently may be a part of a record that is not complete."""
_FAREWELL_S: Final = 0.1
"""Who is told that a connection ends, while nothing is under way, need not say that it has read so."""
_FAREWELL_SWEEPS: Final = 5
_MOST: Final = 1 << 62


class SecureProtocol(DirectProtocol):
    """A connection of HTTP over TLS; it was admitted before its handshake."""

    @property
    def untaken_bytes(self) -> int:
        """0 if the caller has taken all, else a number that becomes smaller while it takes more.

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
        """How many seconds without anything are too many: few, when the connection ends already."""
        return _FAREWELL_SWEEPS if self.transport.is_closing() else keep_alive_s

    def time_out(self) -> None:
        """End a connection; one whose end the caller does not confirm, at once."""
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
        """The caller has ended TLS, and the loop ends the connection: an answer could not be sent any more."""
        if self.receiving:
            super().eof_received()
        return False


# libuv takes one connection from a listening socket in a turn of the loop. Under load a turn lasts tens of
# milliseconds, and callers who connect anew would wait for seconds. Each copy of the socket is one more.
_ACCEPTED_A_TURN: Final = 16
_CLOSED_A_TURN: Final = 16
_KEEP_ALIVE_S: Final = 75
_ARRIVAL_TIMEOUT_S: Final = 10
# A body that drips would last for ever: it has that time, and longer only as far as it arrives at this rate.
_SLOWEST_BYTES_S: Final = 1024
_LONGEST_ARRIVAL_S: Final = 900
# A client that reads nothing of its answer for so long is cut off, sooner when everybody is to go.
_UNREAD_S: Final = 75
_UNREAD_AT_END_S: Final = 5
# A client that has connected sends its first request within this time, or is not waited for.
_FIRST_REQUEST_S: Final = 1.0
# Connections become old between this share of their age and as much more than it.
_YOUNGEST: Final = 0.8
# Multiples of it, without their whole part, fill the space between 0 and 1 evenly, however many there are.
_GOLDEN: Final = (5**0.5 - 1) / 2
_SERVER: Final = (b"server", b"stoker")
_VERSION: Final = (b"x-ms-server-version", f"stoker/{__version__}".encode())


class _AdmittedProtocol(DirectProtocol):
    """A connection that ends here at once where there is no room for it, or where another frontend has it."""

    entrance: Entrance
    handed_on = True

    def connection_made(self, transport: Any) -> None:
        if not self.entrance.admits(transport.get_extra_info("socket").fileno(), handed_on=self.handed_on):
            # It has no request here, and nobody looks after it.
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
            return
        super().connection_made(transport)


class _Open(set[DirectProtocol]):
    """The open connections; uvicorn's protocols enter and leave by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.none_left = asyncio.Event()
        self.tell: Callable[[int], None] = lambda _: None

    def add(self, connection: DirectProtocol) -> None:
        """Let one enter that is new."""
        super().add(connection)
        self.tell(len(self))

    def discard(self, connection: object) -> None:
        """Let one leave that has ended."""
        super().discard(connection)
        self.tell(len(self))
        if not self:
            self.none_left.set()


class Listener:
    """Accepts connections and ends them.

    uvicorn's own `Server` is not used: its shutdown closes connections on which a request may be under way.
    """

    def __init__(
        self,
        app: ASGIApp,
        gateway: Gateway,
        sockets: Sequence[socket.socket],
        count_refused: Callable[[], None] = lambda: None,
        connection_age_s: float = 0.0,
        siblings: Siblings | None = None,
        secure: SecurePort | None = None,
    ) -> None:
        """Begin without any.

        Args:
            count_refused: Called for each connection for which there is no descriptor.
            connection_age_s: How old connections become, give or take a fifth; 0 for any age.
            siblings: The other frontends, which take connections off this one; None if it has none.
            secure: Makes TLS connections of those that come; None serves without TLS.
        """
        self._gateway = gateway
        self._entrance = Entrance(count_refused)
        self._sockets = sockets
        self._config = Config(
            app,
            http=DirectProtocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._config.load()
        self._open = _Open()
        self._state = ServerState()
        self._state.connections = self._open  # type: ignore[assignment]  # all are made by _protocol
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._turns = AppTurns()
        self._unread_s = _UNREAD_S
        self._connection_age_s = connection_age_s
        self._connections = 0
        self._siblings = siblings
        self._secure = secure

    @property
    def connections(self) -> set[DirectProtocol]:
        """The open connections."""
        return self._open

    def receives_for(self, service: Service) -> bool:
        """Whether the body of a plain request for this service is arriving: it does not know of it yet."""
        return any(connection.receives_for(service) for connection in self.connections)

    def _new_protocol(self) -> DirectProtocol:
        """That of a connection that has been accepted here."""
        protocol = self._protocol()
        protocol.handed_on = False
        return protocol

    def _protocol(self) -> _AdmittedProtocol:
        protocol = _AdmittedProtocol(self._config, self._state, {}, gateway=self._gateway)
        protocol.entrance = self._entrance
        protocol.turns = self._turns
        self._give_age(protocol)
        return protocol

    def _secure_protocol(self) -> SecureProtocol:
        protocol = SecureProtocol(self._config, self._state, {}, gateway=self._gateway)
        protocol.turns = self._turns
        self._give_age(protocol)
        return protocol

    def _give_age(self, protocol: DirectProtocol) -> None:
        if self._connection_age_s:
            # Connections that were made together are not to end together, nor any two that follow each other.
            self._connections += 1
            share = _YOUNGEST + (1 - _YOUNGEST) * 2 * (self._connections * _GOLDEN % 1)
            protocol.retires_s = asyncio.get_running_loop().time() + self._connection_age_s * share

    async def start(self) -> None:
        """Begin to accept."""
        self._tell_time()
        loop = asyncio.get_running_loop()
        if self._siblings is not None:
            self._entrance.join(self._siblings, "http", self._take)
            self._open.tell = self._entrance.tell
        if self._secure is not None:
            self._start_secure(self._secure)
        for sock in [] if self._secure is not None else self._sockets:
            # Copies, because a server closes its socket before the last connections have been taken from it.
            for _ in range(_ACCEPTED_A_TURN):
                self._servers.append(
                    await loop.create_server(self._new_protocol, sock=_copy(sock), backlog=2048)
                )
        self._ticker = loop.call_later(1, self._tick)

    def _start_secure(self, secure: SecurePort) -> None:
        def tell(_: int = 0) -> None:
            # Those whose handshake is under way count, or all that come at once would stay here.
            self._entrance.tell(len(self._open) + secure.pending)

        self._open.tell = tell
        secure.start(self._secure_protocol, self._entrance, tell)
        for sock in self._sockets:
            secure.listen(_copy(sock))

    def _tick(self) -> None:
        # First, so that whatever fails below is tried again.
        self._ticker = asyncio.get_running_loop().call_later(1, self._tick)
        self._tell_time()
        self._entrance.look()
        if self._secure is not None:
            self._secure.look()
        self.sweep()

    def sweep(self) -> None:
        """Look at every connection, as is done each second, and end those on which nothing has moved for too long."""
        now_s = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            _reap(connection, self._unread_s)
            if now_s >= connection.retires_s and not connection.old:
                connection.retire()

    def _tell_time(self) -> None:
        headers = [(b"date", formatdate(usegmt=True).encode()), _SERVER]
        if self._gateway.tells_version:
            headers.append(_VERSION)
        traffic = self._gateway.traffic
        if traffic is not None and traffic.undivided:
            # What scores is the same for all requests; where it is not, the app says it of each.
            headers.append((DEPLOYMENT_HEADER, traffic.endpoint.leading.encode()))
        self._state.default_headers = headers
        if self._gateway.cors is not None:
            # The direct door leaves requests of browsers to the app.
            headers = [*headers, *self._gateway.cors.without_origin]
        self._gateway.default_lines = b"".join(b"%b: %b\r\n" % header for header in headers)

    def leave_port(self) -> None:
        """Stop accepting, and leave connections that wait to others who listen on the same sockets."""
        self._entrance.leave()
        self._close_servers()
        for sock in self._sockets:
            sock.close()
        self._servers.clear()

    async def stop_listening(self) -> None:
        """Stop accepting, but take every connection that the kernel has accepted already."""
        if not (self._servers or (self._secure and self._secure.listening)):
            # It has never listened, or has left: others do on these sockets, and are not to be shut off.
            return
        self._entrance.leave()
        for sock in self._sockets:
            drop_new_connections(sock)
        await asyncio.sleep(HANDSHAKE_S)
        self._close_servers()
        for sock in self._sockets:
            sock.setblocking(False)
            while True:
                try:
                    connection, _ = sock.accept()
                except OSError:
                    break
                if self._secure is not None:
                    self._secure.begin(connection)
                else:
                    await self._take(connection)
            sock.close()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        if self._secure is not None:
            self._secure.close()

    async def _take(self, connection: socket.socket) -> None:
        """Serve a connection that has been accepted already."""
        if self._secure is not None:
            await self._secure.serve(connection)
            return
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    async def finish(self, timeout_s: float) -> int:
        """Close connections as they become idle; return how many were still busy after `timeout_s`."""
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s
        if self._secure is not None:
            await self._secure.settle(min(_FIRST_REQUEST_S, timeout_s))
        patience = now() + _FIRST_REQUEST_S
        self._unread_s = _UNREAD_AT_END_S
        while self.connections and now() < deadline:
            await self._close_idle(now() < patience)
            self._open.none_left.clear()
            if self.connections:
                # Their answers close them. Those of which nothing has come are looked at again.
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._open.none_left.wait(), min(_FIRST_REQUEST_S, deadline - now())
                    )
        if self._ticker is not None:
            self._ticker.cancel()
        return len(self.connections)

    async def _close_idle(self, patient: bool) -> None:
        """Close the connections on which nothing happens; if `patient`, not those on which nothing has come yet."""
        for number, connection in enumerate(list(self.connections)):
            if number % _CLOSED_A_TURN == _CLOSED_A_TURN - 1:
                # What has arrived meanwhile is read.
                await asyncio.sleep(0)
            if connection.untaken_bytes:
                # Its answer is not sent to its end; `sweep` ends those whose callers take nothing of it.
                continue
            if not (connection.busy or connection.receiving or (connection.fresh and patient)):
                connection.close_unless_readable()


def _copy(sock: socket.socket) -> socket.socket:
    """A copy of a listening socket that blocks nobody.

    `socket.dup` lets the copy block for a moment, and with it all copies of other processes: a predecessor that looks
    for one more connection just then would stand still until it comes.
    """
    return socket.socket(fileno=os.dup(sock.fileno()))


def _reap(connection: DirectProtocol, unread_s: int) -> None:
    before, connection.unread_bytes = connection.unread_bytes, connection.untaken_bytes
    if connection.busy or connection.unread_bytes < before:
        connection.idle_sweeps = 0
        return
    connection.idle_sweeps += 1
    if connection.unread_bytes:
        # Closing it would wait until the client has read all.
        if connection.idle_sweeps > unread_s:
            connection.transport.abort()
    elif connection.idle_sweeps > (
        _ARRIVAL_TIMEOUT_S if connection.arriving else connection.idle_limit_s(_KEEP_ALIVE_S)
    ):
        connection.time_out()
    elif connection.arriving and not connection.flow.read_paused:
        # Where reading is paused, it is the server that is slow.
        connection.arriving_sweeps += 1
        patience_s = _ARRIVAL_TIMEOUT_S + connection.arrived_bytes // _SLOWEST_BYTES_S
        if connection.arriving_sweeps > min(patience_s, _LONGEST_ARRIVAL_S):
            connection.time_out()
