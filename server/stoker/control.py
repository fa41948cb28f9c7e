"""The control channel between the supervisor and each of its processes.

A SOCK_SEQPACKET socketpair that carries one JSON object a packet, and file descriptors beside it. Either
end sees EOF when the other process ends, however it ends; a process whose supervisor has gone exits.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["MAX_TEXT", "ControlChannel", "Message"]

Message = dict[str, Any]

MAX_TEXT: Final = 60_000
"""Longest text, in characters, that a message should carry: a packet must fit the socket's buffer."""
_PACKET_BYTES: Final = 1 << 20
_MAX_FDS: Final = 16


class ControlChannel:
    """One end of a control channel."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @staticmethod
    def pair() -> tuple[ControlChannel, socket.socket]:
        """Make a channel: this process's end, which never blocks, and the socket for the child."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setblocking(False)
        return ControlChannel(near), far

    @classmethod
    def inherited(cls, fd: int) -> ControlChannel:
        """The end that the supervisor passed to this process."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The socket's file descriptor, to wait on."""
        return self._socket.fileno()

    def send(self, kind: str, fds: Sequence[int] = (), **content: Any) -> bool:
        """Send a message; False if the other process has gone, or has left hundreds of messages unread."""
        packet = json.dumps({"kind": kind, **content}).encode()
        try:
            socket.send_fds(self._socket, [packet], list(fds))
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            return False
        return True

    def receive(self) -> tuple[Message, list[int]] | None:
        """Wait for a message; None at EOF.

        Raises:
            BlockingIOError: There is none, on an end that does not block.
        """
        try:
            packet, fds, _, _ = socket.recv_fds(self._socket, _PACKET_BYTES, _MAX_FDS)
        except ConnectionResetError:
            return None
        return (json.loads(packet), fds) if packet else None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
