"""The connections of the gRPC port: told to end by a GOAWAY of their own, while the library goes on answering.

The library sends a GOAWAY only when a server is stopped, and a server that is stopped kills every call that it has
not handed over, and every call that arrives until its caller has read the GOAWAY. So it is sent here first, as HTTP/2
means it (RFC 9113, section 6.8): begin nothing more here; what you have begun will be answered. A caller's library
closes the connection behind its last answer.

That takes 17 bytes between two frames on a connection that the library writes to. It writes whole frames, and goes on
with the rest of them only where the kernel had no room; so nothing is sent while there may be such a rest. On TLS it
cannot be done.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.gateway.doors.handshakes import drop_new_connections

__all__ = ["Connections"]

_GOAWAY: Final = struct.pack(">BHBBIII", 0, 8, 7, 0, 0, 0x7FFFFFFF, 0)
"""Length, type, flags, stream; the last stream that will be answered: any; and no error."""
_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("9I")
_ACKNOWLEDGED_AT: Final = 120
"""Where in `tcp_info` the kernel counts the bytes that the peer has acknowledged, in 8 bytes."""
_FULL_SHARE: Final = 8
"""A connection of which more than this part of the kernel's room is taken may have the rest of a frame to come. The
library goes on when two thirds are."""


class Connections:
    """The TCP connections that this process has accepted on a port, as the kernel knows them.

    Args:
        port: The port; no other listener of this process has it.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._told: set[int] = set()
        self._calm: set[int] = set()

    def stop_accepting(self) -> None:
        """Let the kernel ignore new handshakes; those that have begun are taken."""
        for _, sock in self._sockets():
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                drop_new_connections(sock)

    def send_away(self, busy: set[int]) -> int:
        """Tell all to end that can be told now, each once; call this again until none is open.

        Args:
            busy: The peers' ports of connections on which a long answer is being written.

        Returns:
            How many are open and have not been told yet.
        """
        still_open: set[int] = set()
        calm: set[int] = set()
        for number, sock in self._sockets():
            with suppress(OSError):
                peer_port: int = sock.getpeername()[1]
                still_open.add(number)
                if number not in self._told and peer_port not in busy and _is_calm(sock):
                    calm.add(number)
                    # Seen twice: whoever has the rest of a frame to write has gone on meanwhile.
                    if number in self._calm and sock.send(_GOAWAY, socket.MSG_DONTWAIT) == len(_GOAWAY):
                        self._told.add(number)
        self._told &= still_open
        self._calm = calm
        return len(still_open - self._told)

    def _sockets(self) -> Iterator[tuple[int, socket.socket]]:
        """The sockets of the port, the listening ones too, each with a number that it keeps; they are copies."""
        for entry in Path("/proc/self/fd").iterdir():
            # Descriptors come and go in the library's threads.
            with suppress(OSError):
                fd = int(entry.name)
                if not stat.S_ISSOCK(os.stat(fd).st_mode):
                    continue
                with socket.socket(fileno=os.dup(fd)) as sock:
                    if sock.type == socket.SOCK_STREAM and _port_of(sock) == self._port:
                        yield os.fstat(sock.fileno()).st_ino, sock


def _port_of(sock: socket.socket) -> int | None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    port: int = sock.getsockname()[1]
    return port


def _is_calm(sock: socket.socket) -> bool:
    """Whether the library has begun to speak on a connection, and has no part of a frame left to write.

    Raises:
        OSError: The connection has ended, or the kernel does not tell.
    """
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED_AT + 8)
    # Before everything else comes the library's SETTINGS.
    if len(info) < _ACKNOWLEDGED_AT + 8 or not any(info[_ACKNOWLEDGED_AT:]):
        return False
    memory = _MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))
    room_bytes, queued_bytes = memory[3], memory[5]
    return bool(queued_bytes * _FULL_SHARE <= room_bytes)
