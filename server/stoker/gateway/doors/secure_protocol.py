"""HTTP over TLS: the same protocol, where the transport is not the socket.

What is in the kernel is no longer what the caller has sent or not taken: there are whole records only, which the loop
reads before they are complete, and hands over to the socket before anybody takes them.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Final

from stoker.gateway.doors.direct import DirectProtocol

__all__ = ["SecureProtocol"]

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
