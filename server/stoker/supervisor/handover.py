"""The listening sockets that a server hands over to its successor, and gets back from it.

The sockets stay open all the time, so no waiting connection is lost, whichever server accepts it.

See decision 24.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final

from stoker.control.handover_messages import (
    Sockets,
)

HANDOVER_VARIABLE: Final = "STOKER_HANDOVER_FD"
_SOCKETS_A_MESSAGE: Final = 8


def send_sockets(send: Callable[[Sockets, Sequence[int]], object], sockets: Sequence[socket.socket]) -> None:
    """Send sockets in as many messages as they need."""
    for first in range(0, len(sockets), _SOCKETS_A_MESSAGE):
        part = sockets[first : first + _SOCKETS_A_MESSAGE]
        send(Sockets(last=first + len(part) == len(sockets)), [sock.fileno() for sock in part])


def open_sockets(fds: Sequence[int]) -> list[socket.socket]:
    """Return the sockets of received descriptors."""
    return [socket.socket(fileno=fd) for fd in fds]
