"""A connection of the gRPC port: HTTP/2 between a socket and its calls.

What is sent during one turn of the event loop is written at its end, in one piece.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from stoker.errors import BodyTooLarge
from stoker.gateway.grpc.calls import Line, Method, RpcCall
from stoker.gateway.grpc.heads import CallHead, head_reader
from stoker.gateway.grpc.infer import InferCall
from stoker.gateway.grpc.room import Room
from stoker.gateway.grpc.streams import InferStream
from stoker.wire.http2.connection import Connection
from stoker.wire.http2.frames import ErrorCode
from stoker.wire.http2.stream import Receiver, Stream

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway

__all__ = ["Door", "House", "call_of"]

_INFERS: Final = (InferCall, InferStream)
_LINGER_S: Final = 1.0
"""How long a client may take to close a connection that was told to end; then it is closed here."""


class House(Protocol):
    """What the connections of a server share."""

    gateway: Gateway
    draining: bool

    def find(self, path: str) -> Method:
        """Return the method of a path; see `InferenceServicer.find`."""

    def flush_soon(self, door: Door) -> None:
        """Call a door's `flush` at the end of this turn of the loop."""

    def go_on_soon(self, door: Door) -> None:
        """Call a door's `go_on` in a later turn of the loop, and again until nothing is left."""

    def admits(self, door: Door, descriptor: int) -> bool:
        """Whether there is room for a new connection with this descriptor; then it is looked after."""

    def left(self, door: Door) -> None:
        """Take note that a connection has ended."""


class Door(asyncio.Protocol):
    """One connection, and the calls on it.

    Attributes:
        http: What is said on it.
        transport: What it is said through; None before it is there, and when it has gone.
        address: Where it comes from.
        room: What its messages take.
        calls: How many have begun.
        written_bytes: How much has been written.
        handed: Whether it is to stay here, since another frontend has handed it on, or nobody is to have it any more.
        due: Whether it is to be flushed at the end of this turn, so that nobody asks for it again.
    """

    def __init__(self, house: House, *, handed: bool = False) -> None:
        self._house, self.handed = house, handed
        self.http: Connection[CallHead] = Connection(head_reader(house.find), self._begin)
        self.http.on_settled = self._end_streams
        self.transport: Any = None
        self.address = ""
        self.room = Room(lambda: house.gateway.bodies, "")
        self.calls = self.written_bytes = 0
        self.due = False
        self._unchecked: list[InferCall | InferStream] = []
        self._ending: asyncio.TimerHandle | None = None
        self._goes_on = False

    @property
    def under_way(self) -> int:
        """How many calls the server waits for when it stops."""
        return sum(call_of(stream).counts for stream in self.http.streams.values())

    @property
    def unread_bytes(self) -> int:
        """How much of what was written has not been taken from this process."""
        return 0 if self.transport is None else int(self.transport.get_write_buffer_size())

    # --- the socket ---

    def connection_made(self, transport: Any) -> None:
        """Greet the client."""
        self.transport = transport
        sock, tls = transport.get_extra_info("socket"), transport.get_extra_info("ssl_object")
        spoken = "h2" if tls is None else tls.selected_alpn_protocol()
        if spoken != "h2" or not self._house.admits(self, sock.fileno()):
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self.room = Room(lambda: self._house.gateway.bodies, self.address)
        if self._house.draining:
            self.http.drain()
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived, and write what that has made."""
        self.due = True
        self.http.receive(data)
        if self._unchecked:
            unchecked, self._unchecked = self._unchecked, []
            for call in unchecked:
                call.check()
        self.due = False
        self.flush()
        if self.http.more and not self._goes_on:
            # Others have their turn before the rest of what this one has sent.
            self._goes_on = True
            self.transport.pause_reading()
            self._house.go_on_soon(self)

    def go_on(self) -> bool:
        """Read a turn's part of what is left; whether there is more."""
        self.data_received(b"")
        if self.http.more:
            return True
        self._goes_on = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        return False

    def pause_writing(self) -> None:
        """Send nothing more: the client does not take it."""
        self.http.writable = False

    def resume_writing(self) -> None:
        """Go on sending."""
        self.http.writable = True
        self.http.pump()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up all calls."""
        del exc
        self.http.failed, self.http.more = True, False
        self.http.lose()
        self.transport = None
        if self._ending is not None:
            self._ending.cancel()
        self._house.left(self)

    def flush_soon(self) -> None:
        """Write what is in `http.out` at the end of this turn of the loop."""
        if not self.due:
            self.due = True
            self._house.flush_soon(self)

    def flush(self) -> None:
        """Write what is to be sent; close the connection where it ends with that."""
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
                # One portion has been written; the next one as long as the socket takes it.
                http.pump()
        if http.failed:
            transport.close()
        elif http.settled and not http.streams and self._ending is None:
            # Its client closes it. If it were closed here, what is still on its way to us would reset it.
            self._ending = asyncio.get_running_loop().call_later(_LINGER_S, transport.close)

    def end(self, reason: str) -> None:
        """End the connection, on which nothing is under way."""
        self.http.fail(ErrorCode.NO_ERROR, reason)
        self.flush()

    def abort(self) -> None:
        """End the connection, whatever is under way."""
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
            # Most have their message with them: their key is looked at with it.
            self._unchecked.append(call)
        return call

    def _end_streams(self) -> None:
        for stream in list(self.http.streams.values()):
            call_of(stream).close()


class _UnknownCall(RpcCall):
    """A call that is refused for its head."""

    __slots__ = ()

    def __init__(self, line: Line, stream: Stream, head: CallHead, method: Method) -> None:
        super().__init__(line, stream, head, method)
        assert head.error is not None, "or its method would be known"
        self.refuse(head.error)


_NO_METHOD: Final = Method(_UnknownCall, 0, lambda _size, _most: BodyTooLarge("no message is read"), None)


def call_of(stream: Stream) -> RpcCall:
    """Return the call that a stream is."""
    call = stream.receiver
    assert isinstance(call, RpcCall), "all are made by doors"
    return call
