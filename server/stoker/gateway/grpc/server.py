"""The gRPC server of one frontend: its port, and the connections that it accepts (decision 28).

The bytes that are sent in one turn of the event loop are written at its end, in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.calls import Method
from stoker.gateway.grpc.connection import GrpcConnection
from stoker.gateway.grpc.open_connections import OpenConnections
from stoker.gateway.grpc.services import InferenceServicer
from stoker.gateway.grpc.turns import ConnectionTurns
from stoker.gateway.listeners.acceptor import Acceptor, Peers
from stoker.gateway.listeners.handshakes import HANDSHAKE_S, drop_new_handshakes
from stoker.gateway.listeners.tls import TlsListener

_ACCEPTED_A_TURN: Final = 16
"""The number of copies of the listening socket: the loop accepts one connection from each in a turn."""
_BACKLOG: Final = 2048
_SWEEP_S: Final = 1.0
_HANDSHAKES_END_S: Final = 1.0
"""How long the server waits for TLS handshakes when it stops."""


class GrpcServer:
    """Answers the calls of one frontend, with health checks and reflection; belongs to one event loop."""

    def __init__(
        self,
        gateway: Gateway,
        address: str,
        *,
        max_message_bytes: int,
        tls: TlsListener | None = None,
        connection_age_s: float = 0.0,
        count_refused: Callable[[], None] = lambda: None,
        peers: Peers | None = None,
    ) -> None:
        """Bind the port, or raise OSError; `start` begins to listen.

        Args:
            address: `HOST:PORT`; every frontend listens there, and the kernel spreads connections over them
                (SO_REUSEPORT).
            connection_age_s: Maximum age of connections, give or take a tenth; then they get a GOAWAY, and end with
                the last answer. 0 for any age.
            count_refused: Called for each connection for which there is no descriptor.
        """
        self.gateway = gateway
        self.draining = False
        self.turns = ConnectionTurns()
        self.connections = OpenConnections(connection_age_s, self._report_count)
        self.find: Callable[[str], Method] = InferenceServicer(gateway, max_message_bytes).find
        self._tls = tls
        self._socket = _listening_socket(address)
        self.port: int = self._socket.getsockname()[1]
        self._acceptor = Acceptor(count_refused)
        self._servers: list[asyncio.Server] = []
        self._peers = peers
        self._ticker: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        if self._peers is not None:
            self._acceptor.join(self._peers, "grpc", self._accept)
        if self._tls is not None:
            self._tls.start(self._handed_over_connection, self._acceptor, self._report_count)
            self._tls.listen(self._copy_of_socket())
        for _ in range(_ACCEPTED_A_TURN if self._tls is None else 0):
            server = await loop.create_server(
                lambda: GrpcConnection(self), sock=self._copy_of_socket(), backlog=_BACKLOG
            )
            self._servers.append(server)
        self._ticker = loop.call_later(_SWEEP_S, self._tick)

    async def stop(self, timeout_s: float) -> int:
        """Accept nothing new, answer pending calls, and end; return how many calls were cut off after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        self.draining = True
        self._acceptor.leave()
        await self._stop_listening(min(HANDSHAKE_S, timeout_s))
        if self._tls is not None:
            await self._tls.wait_for_handshakes(min(_HANDSHAKES_END_S, timeout_s))
        cut_off = await self.connections.finish(deadline_s)
        if self._ticker is not None:
            self._ticker.cancel()
        return cut_off

    def accept_connection(self, connection: GrpcConnection, descriptor: int) -> bool:
        """Accept a new connection if there is room for its descriptor."""
        # With TLS, it was accepted before its handshake.
        if self._tls is None and not self._acceptor.accepts(descriptor, handed_over=connection.handed_over):
            return False
        self.connections.add(connection)
        return True

    def remove(self, connection: GrpcConnection) -> None:
        """Forget a connection that has ended."""
        self.connections.discard(connection)

    def _copy_of_socket(self) -> socket.socket:
        return socket.socket(fileno=os.dup(self._socket.fileno()))

    def _handed_over_connection(self) -> GrpcConnection:
        return GrpcConnection(self, handed_over=True)

    def _report_count(self, _: int = 0) -> None:
        # Handshakes under way count, or all connections of a burst would stay here.
        self._acceptor.report(len(self.connections) + (0 if self._tls is None else self._tls.pending))

    def _tick(self) -> None:
        # First, so that whatever fails below is tried again.
        loop = asyncio.get_running_loop()
        self._ticker = loop.call_later(_SWEEP_S, self._tick)
        self._acceptor.check_room()
        if self._tls is not None:
            self._tls.check_certificate()
        self.connections.check(loop.time())

    async def _stop_listening(self, handshake_s: float) -> None:
        """Stop accepting, but serve every connection that the kernel has accepted already."""
        drop_new_handshakes(self._socket)
        await asyncio.sleep(handshake_s)
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._tls is not None:
            self._tls.close()
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                break
            if self._tls is None:
                await self._accept(sock)
            else:
                # The handshake may take long.
                self._tls.begin(sock)
        self._socket.close()

    async def _accept(self, sock: socket.socket) -> None:
        if self._tls is not None:
            await self._tls.serve(sock)
            return
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(self._handed_over_connection, sock)


def _listening_socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, int(port)))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
