"""One connection of gRPC: HTTP/2 on a transport, and the calls of its streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from stoker.errors import BodyTooLarge
from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.calls import CallConnection, Method, RpcCall
from stoker.gateway.grpc.framing import MessageBudget
from stoker.gateway.grpc.infer import InferCall, InferStream
from stoker.gateway.grpc.metadata import CallHead, head_reader
from stoker.gateway.grpc.torchserve import PredictionCall
from stoker.gateway.grpc.turns import ConnectionTurns
from stoker.wire.http2.connection import Connection
from stoker.wire.http2.frames import ErrorCode
from stoker.wire.http2.streams import Receiver, Stream

_INFERS: Final = (InferCall, InferStream, PredictionCall)
_LINGER_S: Final = 1.0
"""How long a client may take to close a connection after the GOAWAY; then the server closes it."""


class ConnectionServer(Protocol):
    """The server of a connection.

    Attributes:
        find: Finds the method of a call by its path.
        draining: Whether the server stops: a new connection answers what has come, and ends.
    """

    gateway: Gateway
    turns: ConnectionTurns
    find: Callable[[str], Method]
    draining: bool

    def accept_connection(self, connection: GrpcConnection, descriptor: int) -> bool:
        """Accept a new connection if there is room for its descriptor."""

    def remove(self, connection: GrpcConnection) -> None:
        """Forget a connection that has ended."""


class GrpcConnection(asyncio.Protocol):
    """One connection, and the calls on it.

    Attributes:
        transport: None before the connection is made, and after it is lost.
        handed_over: Whether the connection stays here: another frontend has handed it over, or none accepts more.
        due: Whether the connection will be flushed at the end of this turn.
    """

    def __init__(self, server: ConnectionServer, *, handed_over: bool = False) -> None:
        self._server, self._turns, self.handed_over = server, server.turns, handed_over
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
        """Handle the bytes that have arrived, and write the answers."""
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
            self._turns.resume_soon(self)

    def resume(self) -> bool:
        """Handle one portion of the received bytes; return whether there are more."""
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
        """Write the frames in `http.out` at the end of this turn of the loop."""
        if not self.due:
            self.due = True
            self._turns.flush_soon(self)

    def flush(self) -> None:
        """Write the queued frames; close the connection if it ends with them."""
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
