"""TCP handshakes with a listening socket that is about to close."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from typing import Final

HANDSHAKE_S: Final = 0.05
"""How long a handshake that has begun may take to complete."""
_SO_ATTACH_FILTER: Final = 26
# Classic BPF on the TCP header: drop what has SYN without ACK in its flags (byte 13), accept everything else.
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


def drop_new_handshakes(sock: socket.socket) -> None:
    """Let the kernel drop new handshakes on a listening socket.

    Otherwise the kernel would complete handshakes between the last `accept` and the close of the socket, and then
    reset these connections. A client whose SYN is dropped sends it again after a second, and is refused before it
    has sent a request.
    """
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(buffer))
    # Where socket filters are not allowed, a few connections may be reset.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
