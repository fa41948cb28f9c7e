"""What a frontend and the reader of its long bodies hand each other: shared memory with bytes, and a pickle behind.

Both are processes of one server that run the same code, and nobody else has an end of their socket. The packet that
brings the memory says only where in it the pickle is.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.system.passed_memory import receive_packet

__all__ = ["Parcel", "receive_parcel", "send_parcel"]

_PLACE: Final = struct.Struct("<qq")


class Parcel(NamedTuple):
    """What has come.

    Attributes:
        memory_fd: The shared memory; the receiver closes it.
        size_bytes: How many bytes it begins with.
        content: What was pickled behind them.
    """

    memory_fd: int
    size_bytes: int
    content: Any


def send_parcel(sock: socket.socket, memory_fd: int, size_bytes: int, content: object) -> None:
    """Send memory that begins with so many bytes, and an object; arrays in that arrive as None.

    Raises:
        OSError: The other process has gone, or there is no memory.
    """
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(content)
    pickled = file.getvalue()
    # Whoever maps the memory finds all of it there, be it empty.
    os.ftruncate(memory_fd, size_bytes + len(pickled))
    os.pwrite(memory_fd, pickled, size_bytes)
    socket.send_fds(sock, [_PLACE.pack(size_bytes, len(pickled))], [memory_fd])


def receive_parcel(sock: socket.socket) -> Parcel | None:
    """Wait for a parcel; None if the other process has gone.

    Raises:
        BlockingIOError: There is none, on an end that does not block.
        OSError: This process may not have more descriptors open.
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
        # What a request came with is submitted, and not needed to write its answer.
        return "array" if isinstance(thing, np.ndarray) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: object) -> None:
        del pid
