"""Memory and other files that one process hands to another one: descriptors beside a packet of a Unix socket."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["Packet", "memory_with", "receive_packet"]

# A script may start processes at any time, which must not hold open what tells others that this one has ended.
# `socket.recv_fds` takes flags, and does not use them.
_NOT_INHERITED: Final = socket.MSG_CMSG_CLOEXEC


class Packet(NamedTuple):
    """What has come.

    Attributes:
        content: Its bytes.
        fds: The descriptors beside it; the receiver closes them.
        incomplete: Whether further descriptors were lost, because this process may not have more of them open.
    """

    content: bytes
    fds: list[int]
    incomplete: bool


def receive_packet(sock: socket.socket, most_bytes: int, most_fds: int) -> Packet | None:
    """Wait for a packet; None if the other process has gone.

    Raises:
        BlockingIOError: There is none, on an end that does not block.
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
    """The descriptor of memory that holds these bytes; who calls it closes it.

    Args:
        name: What the kernel calls it, in /proc.
        pieces: Its content.

    Raises:
        OSError: There is not so much memory, or this process may not have more descriptors open.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with os.fdopen(fd, "wb", closefd=False) as memory:
            memory.writelines(pieces)
    except BaseException:
        os.close(fd)
        raise
    return fd
