"""The monitor of one connection of gRPC, which ends it at its timeouts."""

from __future__ import annotations

from typing import Final, NamedTuple

from stoker.gateway.grpc.connection import GrpcConnection, call_of
from stoker.wire.http2.frames import ErrorCode

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
