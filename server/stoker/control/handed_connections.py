"""Connections on their way from one frontend to another: a datagram of a protocol's name and one descriptor."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

__all__ = ["HandedConnection", "receive_connection", "send_connection"]

_NAME_BYTES: Final = 16
"""Longest name of a protocol."""


class HandedConnection(NamedTuple):
    """A connection that was handed on.

    Attributes:
        protocol: What is spoken on it, of `stoker.metrics.layout.PROTOCOLS`.
        descriptor: Its descriptor, which the receiver owns; None if there was none left for it in this process, so
            that the kernel has closed the connection.
    """

    protocol: str
    descriptor: int | None


def send_connection(door: socket.socket, protocol: str, descriptor: int) -> None:
    """Send a copy of a connection's descriptor to a mailbox.

    Raises:
        OSError: The mailbox is full, or the system has no room.
    """
    socket.send_fds(door, [protocol.encode()], [descriptor])


def receive_connection(inbox: socket.socket) -> HandedConnection:
    """Take the next connection out of a mailbox.

    Raises:
        BlockingIOError: There is none.
        OSError: The mailbox cannot be read.
    """
    kind, descriptors, *_ = socket.recv_fds(inbox, _NAME_BYTES, 1)
    return HandedConnection(kind.decode(), descriptors[0] if descriptors else None)
