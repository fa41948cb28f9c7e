"""Passing memory and files between processes: descriptors beside a packet of a Unix socket."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

# Processes that a script starts must not keep descriptors open whose closing signals the end of this process.
# `socket.recv_fds` ignores its flags.
_NOT_INHERITED: Final = socket.MSG_CMSG_CLOEXEC


class Packet(NamedTuple):
    """A received packet.

    Attributes:
        fds: The descriptors beside it, to be closed by the receiver.
        incomplete: Whether descriptors were lost because this process has too many open.
    """

    content: bytes
    fds: list[int]
    incomplete: bool


def receive_packet(sock: socket.socket, most_bytes: int, most_fds: int) -> Packet | None:
    """Wait for a packet; None if the other process has gone.

    Raises:
        BlockingIOError: There is none, and the socket does not block.
    """
    room = socket.CMSG_LEN(most_fds * array("i").itemsize)
    try:
        content, ancillary, flags, _ = sock.recvmsg(most_bytes, room, _NOT_INHERITED)
    except ConnectionResetError:
        return None
    if not content:
        return None
    fds = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return Packet(content, fds.tolist(), bool(flags & socket.MSG_CTRUNC))


def memory_with(name: str, pieces: Iterable[bytes | memoryview]) -> int:
    """Create memory with these bytes, called `name` in /proc, and return its descriptor; the caller closes it.

    Raises:
        OSError: There is not enough memory, or this process has too many open descriptors.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with os.fdopen(fd, "wb", closefd=False) as memory:
            memory.writelines(pieces)
    except BaseException:
        os.close(fd)
        raise
    return fd
