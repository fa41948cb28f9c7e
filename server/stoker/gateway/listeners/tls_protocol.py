"""A connection of HTTP over TLS."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Final

from stoker.gateway.listeners.direct import DirectProtocol

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
