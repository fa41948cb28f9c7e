"""What a frontend and its reader of long bodies send each other: shared memory with bytes, followed by a pickle.

Both are processes of one server that run the same code, and nobody else has an end of their socket, so the pickle
is trusted. The packet with the descriptor only says where in the memory the pickle begins.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.system.fd_passing import receive_packet

__all__ = ["Parcel", "receive_parcel", "send_parcel"]

_PLACE: Final = struct.Struct("<qq")


class Parcel(NamedTuple):
    """A received parcel.

    Attributes:
        memory_fd: The shared memory; the receiver closes it.
        size_bytes: How many bytes precede the pickle.
        content: The unpickled object.
    """

    memory_fd: int
    size_bytes: int
    content: Any


def send_parcel(sock: socket.socket, memory_fd: int, size_bytes: int, content: object) -> None:
    """Send memory with this many bytes, and an object; arrays in the object arrive as None.

    Raises:
        OSError: The other process has gone, or there is no memory.
    """
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(content)
    pickled = file.getvalue()
    # The receiver maps the whole memory, which must not be empty.
    os.ftruncate(memory_fd, size_bytes + len(pickled))
    os.pwrite(memory_fd, pickled, size_bytes)
    socket.send_fds(sock, [_PLACE.pack(size_bytes, len(pickled))], [memory_fd])


def receive_parcel(sock: socket.socket) -> Parcel | None:
    """Receive a parcel; None if the other process has gone.

    Raises:
        BlockingIOError: None has arrived, on a socket that does not block.
        OSError: This process has too many descriptors open.
    """
    packet = receive_packet(sock, _PLACE.size, 1)
    if packet is None:
        return None
    if not packet.fds:
        raise OSError("a long body was lost: too many open files")
    (memory_fd,) = packet.fds
    size_bytes, pickled_bytes = _PLACE.unpack(packet.content)
    content = _Unpickler(io.BytesIO(os.pread(memory_fd, pickled_bytes, size_bytes))).load()
    return Parcel(memory_fd, size_bytes, content)


class _Pickler(pickle.Pickler):
    def persistent_id(self, thing: object) -> str | None:
        # The arrays of a request are submitted, and are not needed to write its answer.
        return "array" if isinstance(thing, np.ndarray) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: object) -> None:
        del pid
