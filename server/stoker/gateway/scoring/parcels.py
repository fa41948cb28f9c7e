"""Messages between a frontend and its reader of long bodies: shared memory with bytes, followed by a pickle.

Both are processes of one server that run the same code, and nobody else has an end of their socket, so the pickle
is trusted. The packet with the descriptor only says where in the memory the pickle begins.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from stoker.system.fd_passing import receive_packet

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.gateway.rows.urgency import Urgency
    from stoker.gateway.scoring.call import Dialect
    from stoker.sequence_steps import SequenceStep
    from stoker.settings.choices import NonFinite
    from stoker.tensors import Signature
    from stoker.wire.script_requests import RequestHead

_PLACE: Final = struct.Struct("<qq")


class Parcel(NamedTuple):
    """A received parcel.

    Attributes:
        memory_fd: The shared memory; the receiver closes it.
        size_bytes: How many bytes precede the pickle.
    """

    memory_fd: int
    size_bytes: int
    content: Any


def send_parcel(sock: socket.socket, memory_fd: int, size_bytes: int, content: object) -> None:
    """Send memory with this many bytes, and an object, whose arrays arrive as None; raise OSError if that fails."""
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


class DecodeTask(Struct, frozen=True):
    """The task of the reader, beside the body; without a dialect, the model's is used."""

    name: str
    version: str
    signature: Signature
    non_finite: NonFinite
    dialect: Dialect | None
    head: RequestHead | None
    request_id: bytes
    received_ns: int
    deadline_ns: int
    urgency: Urgency | None


class DecodedBody(Struct):
    """The decoded content of a body; its bytes are in the shared memory that comes with it.

    Attributes:
        arrays: Per input dtype and shape of its rows, in the order in which they lie in the memory; None if the
            memory is a row of bytes.
        write: As `Call.write`, without the request's arrays; None if the dialect sets none.
        fault: The traceback of an unexpected exception.
    """

    deadline_ns: int
    urgency: Urgency | None = None
    sequence: SequenceStep | None = None
    arrays: list[tuple[str, tuple[int, ...]]] | None = None
    empty: bool = False
    write: Callable[[Mapping[str, np.ndarray]], tuple[bytes, bytes]] | None = None
    error: StokerError | None = None
    fault: str = ""
