"""The gRPC server of one frontend: its port, its connections, and their timeouts.

What is sent in one turn of the event loop is written at its end, in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from stoker.errors import BodyTooLarge
from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.calls import CallConnection, Method, RpcCall
from stoker.gateway.grpc.framing import MessageBudget
from stoker.gateway.grpc.infer import InferCall, InferStream
from stoker.gateway.grpc.metadata import CallHead, head_reader
from stoker.gateway.grpc.services import InferenceServicer
from stoker.gateway.grpc.torchserve import PredictionCall
from stoker.gateway.listeners.connections import (
    HANDSHAKE_S,
    Acceptor,
    ConnectionAges,
    Peers,
    drop_new_handshakes,
)
from stoker.gateway.listeners.tls import TlsListener
from stoker.wire.http2.connection import Connection
from stoker.wire.http2.frames import ErrorCode
from stoker.wire.http2.streams import Receiver, Stream

logger = logging.getLogger(__name__)

_INFERS: Final = (InferCall, InferStream, PredictionCall)
_LINGER_S: Final = 1.0
"""How long a client may take to close a connection after the GOAWAY; then the server closes it."""


class GrpcConnection(asyncio.Protocol):
    """One connection, and the calls on it.

    Attributes:
        transport: None before the connection is made, and after it is lost.
        handed_over: Whether the connection stays here: another frontend has handed it over, or none accepts more.
        due: Whether the connection will be flushed at the end of this turn.
    """

    def __init__(self, server: GrpcServer, *, handed_over: bool = False) -> None:
        self._server, self.handed_over = server, handed_over
        self.http: Connection[CallHead] = Connection(head_reader(server.find), self._begin)
        self.http.on_settled = self._end_streams
        self.transport: Any = None
        self.address = ""
        self.budget = MessageBudget(lambda: server.gateway.bodies, "")
        self.calls = self.written_bytes = 0
        self.due = False
        self._unchecked: list[InferCall | InferStream | PredictionCall] = []
        self._ending: asyncio.TimerHandle | None = None
        self._resumes = False

    @property
    def calls_under_way(self) -> int:
        """How many calls the server waits for when it stops."""
        return sum(call_of(stream).counts for stream in self.http.streams.values())

    @property
    def unread_bytes(self) -> int:
        """How many written bytes are still buffered in this process."""
        return 0 if self.transport is None else int(self.transport.get_write_buffer_size())

    # --- the socket ---

    def connection_made(self, transport: Any) -> None:
        """Begin to speak HTTP/2, if there is room for the connection."""
        self.transport = transport
        sock, tls = transport.get_extra_info("socket"), transport.get_extra_info("ssl_object")
        protocol = "h2" if tls is None else tls.selected_alpn_protocol()
        if protocol != "h2" or not self._server.accept_connection(self, sock.fileno()):
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self.budget = MessageBudget(lambda: self._server.gateway.bodies, self.address)
        if self._server.draining:
            self.http.drain()
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Handle what has arrived, and write the answers."""
        self.due = True
        self.http.receive(data)
        if self._unchecked:
            unchecked, self._unchecked = self._unchecked, []
            for call in unchecked:
                call.check()
        self.due = False
        self.flush()
        if self.http.more and not self._resumes:
            # Other connections have their turn before the rest of this one.
            self._resumes = True
            self.transport.pause_reading()
            self._server.resume_soon(self)

    def resume(self) -> bool:
        """Handle one portion of what is left; return whether there is more."""
        self.data_received(b"")
        if self.http.more:
            return True
        self._resumes = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        return False

    def pause_writing(self) -> None:
        """Stop sending: the client does not read."""
        self.http.writable = False

    def resume_writing(self) -> None:
        """Continue to send."""
        self.http.writable = True
        self.http.pump()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls."""
        del exc
        self.http.failed = True
        self.http.lose()
        self.transport = None
        if self._ending is not None:
            self._ending.cancel()
        self._server.remove(self)

    def flush_soon(self) -> None:
        """Write what is in `http.out` at the end of this turn of the loop."""
        if not self.due:
            self.due = True
            self._server.flush_soon(self)

    def flush(self) -> None:
        """Write what is queued; close the connection if it ends with that."""
        self.due = False
        http, transport = self.http, self.transport
        if transport is None or transport.is_closing():
            return
        while http.out:
            data = b"".join(http.out)
            http.out.clear()
            self.written_bytes += len(data)
            transport.write(data)
            if http.sending:
                # One portion has been written; the next follows while the socket accepts it.
                http.pump()
        if http.failed:
            transport.close()
        elif http.settled and not http.streams and self._ending is None:
            # The client closes it. If the server closed it, data that is still arriving would reset the connection.
            self._ending = asyncio.get_running_loop().call_later(_LINGER_S, transport.close)

    def end(self, reason: str) -> None:
        """End an idle connection."""
        self.http.fail(ErrorCode.NO_ERROR, reason)
        self.flush()

    def abort(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    # --- calls ---

    def _begin(self, stream: Stream, head: CallHead) -> Receiver:
        self.calls += 1
        method = head.method
        if method is None or head.error is not None:
            return _UnknownCall(self, stream, head, _NO_METHOD)
        call: RpcCall = method.begin(self, stream, head, method)
        if isinstance(call, _INFERS):
            # Most messages arrive with their head: the key is checked together with the message.
            self._unchecked.append(call)
        return call

    def _end_streams(self) -> None:
        for stream in list(self.http.streams.values()):
            call_of(stream).close()


class _UnknownCall(RpcCall):
    __slots__ = ()

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead, method: Method) -> None:
        super().__init__(connection, stream, head, method)
        assert head.error is not None, "or its method would be known"
        self.refuse(head.error)


_NO_METHOD: Final = Method(_UnknownCall, 0, lambda _size, _most: BodyTooLarge("no message is read"), None)


def call_of(stream: Stream) -> RpcCall:
    """Return the call that a stream is."""
    call = stream.receiver
    assert isinstance(call, RpcCall), "all are made by `GrpcConnection`"
    return call


_PART_SWEEPS: Final = 75
"""How long a frame may take to arrive: 64 KiB at a KiB a second, and ten seconds."""


class Timeouts(NamedTuple):
    """The timeouts of a connection.

    Attributes:
        handshake_s: Until the connection speaks HTTP/2.
        idle_s: Without a call.
        silence_s: Until a silent peer gets a PING.
        answer_s: Until the peer has to answer the PING.
        unread_s: Until the peer has to read some of what is sent.
    """

    handshake_s: float
    idle_s: float
    silence_s: float
    answer_s: float
    unread_s: float


class ConnectionMonitor:
    """Ends a connection that exceeds its timeouts; an old one, at `retires_s`, gets a GOAWAY."""

    def __init__(
        self, connection: GrpcConnection, timeouts: Timeouts, now_s: float, retires_s: float
    ) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._retires_s = retires_s
        self._made_s = self._called_s = self._received_s = self._read_s = now_s
        self._pinged_s: float | None = None
        self._calls = self._read_bytes = self._part_sweeps = 0

    def check(self, now_s: float) -> None:
        """Check the connection and its calls; called once a second."""
        connection = self._connection
        http = connection.http
        http.tolerance.restore()
        for stream in list(http.streams.values()):
            call_of(stream).sweep()
        if connection.calls != self._calls or http.streams:
            self._calls, self._called_s = connection.calls, now_s
        if not http.greeted:
            if now_s - self._made_s >= self._timeouts.handshake_s:
                connection.end("handshake timeout")
        elif now_s - self._called_s >= self._timeouts.idle_s:
            connection.end("connection idle")
        elif not self._check_peer(now_s) or not self._check_arriving_frame():
            return
        elif now_s >= self._retires_s:
            http.drain()
        self._check_unread(now_s)
        connection.flush()

    def _check_peer(self, now_s: float) -> bool:
        http = self._connection.http
        if http.has_received:
            http.has_received = False
            self._received_s, self._pinged_s = now_s, None
        elif self._pinged_s is None:
            if now_s - self._received_s >= self._timeouts.silence_s:
                self._pinged_s = now_s
                http.ask()
        elif now_s - self._pinged_s >= self._timeouts.answer_s:
            self._connection.end("ping_timeout")
            return False
        return True

    def _check_arriving_frame(self) -> bool:
        http = self._connection.http
        if not http.arriving or not http.stuck:
            http.stuck, self._part_sweeps = http.arriving, 0
            return True
        self._part_sweeps += 1
        if self._part_sweeps > _PART_SWEEPS:
            http.fail(ErrorCode.ENHANCE_YOUR_CALM, "frame does not arrive")
            self._connection.flush()
            return False
        return True

    def _check_unread(self, now_s: float) -> None:
        """Abort the connection if its peer reads nothing: closing would wait until it does."""
        unread_bytes = self._connection.unread_bytes
        read_bytes = self._connection.written_bytes - unread_bytes
        if not unread_bytes or read_bytes > self._read_bytes:
            self._read_bytes, self._read_s = read_bytes, now_s
        elif now_s - self._read_s >= self._timeouts.unread_s:
            self._connection.abort()


_ACCEPTED_A_TURN: Final = 16
"""The number of copies of the listening socket: the loop accepts one connection from each in a turn."""
_BACKLOG: Final = 2048
_SWEEP_S: Final = 1.0
_SETTLED_S: Final = 5.0
"""How long the server waits for a peer to acknowledge the GOAWAY when it stops."""
_HANDSHAKES_END_S: Final = 1.0
"""How long the server waits for TLS handshakes when it stops."""
_UNREAD_S: Final = 75.0
_YOUNGEST: Final = 0.9

_HANDSHAKE_MS: Final = 10_000
"""A connection that does not speak HTTP/2 by then is closed."""
_IDLE_MS: Final = 300_000
"""A connection without a call for this time is closed; clients connect again with their next call."""
_LOOK_FOR_PEER_MS: Final = 60_000
_SILENT_PEER_MS: Final = 20_000
"""A peer that sends nothing for a minute gets a PING; one that does not answer by then has gone."""


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
        self.connections: dict[GrpcConnection, None] = {}
        self.draining = False
        self.find: Callable[[str], Method] = InferenceServicer(gateway, max_message_bytes).find
        self._tls = tls
        self._socket = _listening_socket(address)
        self.port: int = self._socket.getsockname()[1]
        self._ages = ConnectionAges(connection_age_s, _YOUNGEST)
        self._timeouts = Timeouts(
            _HANDSHAKE_MS / 1000, _IDLE_MS / 1000, _LOOK_FOR_PEER_MS / 1000, _SILENT_PEER_MS / 1000, _UNREAD_S
        )
        self._acceptor = Acceptor(count_refused)
        self._servers: list[asyncio.Server] = []
        self._monitors: dict[GrpcConnection, ConnectionMonitor] = {}
        self._peers = peers
        self._due: list[GrpcConnection] = []
        self._resuming: deque[GrpcConnection] = deque()
        self._none_left = asyncio.Event()
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
        for connection in list(self.connections):
            connection.http.drain()
            connection.flush()
        await self._wait(min(loop.time() + _SETTLED_S, deadline_s))
        for connection in list(self.connections):
            connection.http.settle()
            connection.flush()
        await self._wait(deadline_s)
        cut_off = sum(connection.calls_under_way for connection in self.connections)
        for connection in list(self.connections):
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()
        return cut_off

    def accept_connection(self, connection: GrpcConnection, descriptor: int) -> bool:
        """Accept a new connection if there is room for its descriptor."""
        # With TLS, it was accepted before its handshake.
        if self._tls is None and not self._acceptor.accepts(descriptor, handed_over=connection.handed_over):
            return False
        now_s = asyncio.get_running_loop().time()
        self.connections[connection] = None
        self._monitors[connection] = ConnectionMonitor(
            connection, self._timeouts, now_s, self._ages.end_s(now_s)
        )
        self._report_count()
        return True

    def remove(self, connection: GrpcConnection) -> None:
        """Forget a connection that has ended."""
        self.connections.pop(connection, None)
        self._monitors.pop(connection, None)
        self._report_count()
        if not self.connections:
            self._none_left.set()

    def flush_soon(self, connection: GrpcConnection) -> None:
        """Flush a connection at the end of this turn of the loop."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.append(connection)

    def resume_soon(self, connection: GrpcConnection) -> None:
        """Resume a connection in later turns of the loop until nothing is left."""
        self._resuming.append(connection)
        if len(self._resuming) == 1:
            asyncio.get_running_loop().call_soon(self._resume_next)

    def _resume_next(self) -> None:
        # One a turn: however many connections are flooded, others wait for one portion only.
        connection = self._resuming.popleft()
        try:
            if connection.resume():
                self._resuming.append(connection)
        except Exception:
            # As the event loop does if `data_received` raises.
            logger.exception("a connection of gRPC failed; it is ended")
            connection.abort()
        if self._resuming:
            asyncio.get_running_loop().call_soon(self._resume_next)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for connection in due:
            connection.flush()

    # --- connections ---

    def _copy_of_socket(self) -> socket.socket:
        return socket.socket(fileno=os.dup(self._socket.fileno()))

    def _handed_over_connection(self) -> GrpcConnection:
        return GrpcConnection(self, handed_over=True)

    def _report_count(self) -> None:
        # Handshakes under way count, or all connections of a burst would stay here.
        self._acceptor.report(len(self.connections) + (0 if self._tls is None else self._tls.pending))

    def _tick(self) -> None:
        # First, so that whatever fails below is tried again.
        loop = asyncio.get_running_loop()
        self._ticker = loop.call_later(_SWEEP_S, self._tick)
        self._acceptor.check_room()
        if self._tls is not None:
            self._tls.check_certificate()
        now_s = loop.time()
        for connection in list(self.connections):
            self._monitors[connection].check(now_s)

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

    async def _wait(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._none_left.clear()
        left_s = deadline_s - loop.time()
        if self.connections and left_s > 0:
            waiting = asyncio.ensure_future(self._none_left.wait())
            await asyncio.wait((waiting,), timeout=left_s)
            waiting.cancel()


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
