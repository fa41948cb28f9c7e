"""Letting the kernel ignore new connections, before the sockets that accept them are closed."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from typing import Final

__all__ = ["HANDSHAKE_S", "drop_new_connections"]

HANDSHAKE_S: Final = 0.05
"""How long a handshake that has begun may take to end."""
_SO_ATTACH_FILTER: Final = 26
# Classic BPF on the TCP header: drop what has SYN without ACK in its flags (byte 13), take everything else.
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


def drop_new_connections(sock: socket.socket) -> None:
    """Let the kernel ignore new handshakes on a listening socket.

    Between the last `accept` and the end of the socket, the kernel would complete handshakes and then reset them. A
    client whose SYN is dropped sends it again after a second and is refused: it has not sent a request yet.
    """
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(buffer))
    # Where filters are not allowed, a few connections may be reset.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
